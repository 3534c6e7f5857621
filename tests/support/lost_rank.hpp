// What the programs that lose a rank do and tell: mpi_rank_program and tcp_rank_program.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>

#include "cpu/cpu_device.hpp"
#include "strata/communicator.hpp"

namespace strata::test {

// In one piece, also beside other ranks.
inline void say(const std::string& line) {
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, line.data(), line.size());
}

// "rank <r>: <code> after <ms> ms: <message>"
inline void report(Rank rank, std::chrono::steady_clock::time_point start,
                   const std::optional<Error>& error) {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  say(error ? fmt::format("rank {}: {} after {} ms: {}\n", rank.value, name_of(error->code()),
                          waited.count(), error->what())
            : fmt::format("rank {}: no error\n", rank.value));
}

inline std::optional<Error> error_in_collective(Communicator& communicator, CpuDevice& device) {
  const StreamId stream = device.create_stream("collectives");
  const ShardedBuffer buffer{device.arena().data(), 300'000, DType::bf16};
  communicator.all_gather(stream, {&buffer, 1});
  communicator.reduce_scatter(stream, {&buffer, 1});
  device.synchronize(device.record(stream));
  return communicator.failure();
}

inline std::optional<Error> error_in_exchange(Communicator& communicator) {
  try {
    communicator.exchange(std::as_bytes(std::span("?", 1)));
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace strata::test
