// What the tests of the TCP room share: a port that nothing uses, ranks as threads of this
// process, and the error of a call.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/descriptor.hpp"
#include "support/error_of.hpp"
#include "tcp/control_plane.hpp"

namespace strata::test {

// A socket that listens at a port of 127.0.0.1; 0 picks one. Empty when the port is taken.
inline Descriptor listen_at(std::uint16_t& port) {
  Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), any, length) != 0 || ::listen(listener.get(), 16) != 0) return {};
  EXPECT_EQ(::getsockname(listener.get(), any, &length), 0);
  port = ntohs(address.sin_port);
  return listener;
}

// A free port that the kernel hands out to nobody: tests run side by side.
inline std::uint16_t free_port() {
  std::random_device random;
  for (;;) {
    auto port = static_cast<std::uint16_t>(10'000 + random() % 20'000);
    if (listen_at(port)) return port;
  }
}

inline Descriptor connect_to(std::uint16_t port) {
  Descriptor connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  while (::connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return connection;
}

inline tcp::Launch launch_of(std::uint32_t rank, std::uint32_t size, std::uint16_t port) {
  return {.rank = rank, .size = size, .master_addr = "127.0.0.1", .master_port = port};
}

// Runs the function once per rank, each on a thread of its own; throws what the first one threw.
inline void on_threads(std::uint32_t size, const std::function<void(std::uint32_t)>& function) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        function(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

// The all-gather by which threads that are ranks find each other.
class ThreadGather {
 public:
  explicit ThreadGather(std::uint32_t size) : pieces_(size) {}

  std::vector<std::byte> gather(std::uint32_t rank, std::span<const std::byte> mine) {
    std::unique_lock lock(mutex_);
    pieces_[rank].assign(mine.begin(), mine.end());
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return arrived_ == pieces_.size(); });
    std::vector<std::byte> all;
    for (const auto& piece : pieces_) all.insert(all.end(), piece.begin(), piece.end());
    return all;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t arrived_ = 0;
  std::vector<std::vector<std::byte>> pieces_;
};

// Control planes of ranks that are threads.
inline void on_planes(std::uint32_t size, const std::function<void(tcp::ControlPlane&)>& function) {
  ThreadGather gather(size);
  on_threads(size, [&](std::uint32_t rank) {
    const auto plane = tcp::ControlPlane::connect(
        rank, size, [&](std::span<const std::byte> mine) { return gather.gather(rank, mine); },
        std::chrono::seconds(60));
    function(*plane);
  });
}

}  // namespace strata::test
