#include "mpi/mpi_communicator.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "mpi/control_plane.hpp"
#include "mpi/data_plane.hpp"
#include "mpi/message_plane.hpp"
#include "mpi/mpi_process.hpp"
#include "mpi/window_plane.hpp"
#include "ports/host_communicator.hpp"

namespace strata {
namespace {

using mpi::check;
using mpi::MpiProcess;

// This process's stay in MPI; ends it uncleanly unless told otherwise.
class MpiStay {
 public:
  MpiStay() { MpiProcess::instance().enter(); }
  MpiStay(const MpiStay&) = delete;
  MpiStay& operator=(const MpiStay&) = delete;
  ~MpiStay() { MpiProcess::instance().leave(clean_); }

  void ends_cleanly() { clean_ = true; }

 private:
  bool clean_ = false;
};

struct HostGroup {
  Rank rank;
  std::uint32_t size = 1;
};

HostGroup find_host_group(MPI_Comm comm) {
  const auto lock = MpiProcess::instance().lock();
  MPI_Comm host = MPI_COMM_NULL;
  check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
  int rank = 0;
  int size = 0;
  check(MPI_Comm_rank(host, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(host, &size), "MPI_Comm_size");
  check(MPI_Comm_free(&host), "MPI_Comm_free");
  return {Rank{static_cast<std::uint32_t>(rank)}, static_cast<std::uint32_t>(size)};
}

MPI_Comm duplicate(MPI_Comm comm) {
  const auto lock = MpiProcess::instance().lock();
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup", ErrorCode::not_supported);
  return copy;
}

void check_window(const MpiOptions& options, std::uint32_t size) {
  // Two halves with a cache line for each peer, and a bound that MPI's int counts can hold.
  const Bytes least = Bytes{128} * std::max(size, 2U);
  if (options.window < least || options.window > 1_GiB) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("MpiOptions::window must be from {} bytes to 1 GiB with {} ranks",
                            least.value, size),
                {.size = options.window});
  }
}

class MpiCommunicator final : public HostCommunicator {
 public:
  // Takes over `comm`. Collective over its ranks.
  MpiCommunicator(MPI_Comm comm, const MpiOptions& options)
      : options_(options), control_(comm, failure_) {
    check_window(options_, size());
    host_ = find_host_group(comm);
    if (size() == 1) return;
    if (options_.shared_memory && host_.size == size()) {
      data_ = std::make_unique<mpi::WindowPlane>(control_, options_.window);
    } else {
      data_ = std::make_unique<mpi::MessagePlane>(duplicate(comm), control_, options_.window);
    }
  }

  ~MpiCommunicator() override {
    drain();
    close();
  }

  std::string_view name() const override { return "mpi"; }
  Rank rank() const override { return Rank{control_.rank()}; }
  std::uint32_t size() const override { return control_.size(); }
  Rank host_rank() const override { return host_.rank; }
  std::uint32_t host_size() const override { return host_.size; }
  Bytes staging_bytes() const override { return data_ ? data_->staging_bytes() : Bytes{0}; }

  void attach(Device& device) override {
    set_device(device);
    call(ControlCall::attach, {});
  }

  std::unique_ptr<Communicator> split(std::uint32_t color, std::uint32_t key) override;

  std::vector<std::byte> exchange(std::span<const std::byte> mine) override {
    STRATA_ASSERT(mine.size() <= kMaxExchange, "exchange() is for small messages");
    return call(ControlCall::exchange, mine);
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    control_.set_timeout(timeout);
  }

  void abort(std::string_view reason) override {
    control_.give_up(reason);
    failure_.record(Error(ErrorCode::rank_lost, fmt::format("this rank gave up: {}", reason),
                          {.rank = rank()}));
  }

 protected:
  void run(const Collective& collective) override;
  void on_first_failure(const Error& error) override { control_.give_up(error.what()); }

 private:
  std::vector<std::byte> call(ControlCall which, std::span<const std::byte> mine) {
    try {
      return control_.call(which, mine);
    } catch (const Error& error) {
      fail(error);
      throw;
    }
  }

  void close() noexcept;

  MpiStay stay_;
  MpiOptions options_;
  mpi::ControlPlane control_;
  HostGroup host_;
  std::unique_ptr<mpi::DataPlane> data_;  // null for one rank
  std::chrono::milliseconds timeout_{60'000};
};

void MpiCommunicator::run(const Collective& collective) {
  if (data_) run_on(*data_, collective, size());
}

std::unique_ptr<Communicator> MpiCommunicator::split(std::uint32_t color, std::uint32_t key) {
  const std::uint32_t mine[2] = {color, key};
  const std::vector<std::byte> bytes = call(ControlCall::split, std::as_bytes(std::span(mine)));
  std::vector<std::uint32_t> all(2 * size());
  std::memcpy(all.data(), bytes.data(), bytes.size());
  // MPI takes non-negative ints; the first rank of a color and the position by key serve as well.
  std::uint32_t first_of_color = size();
  int position = 0;
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (all[2 * peer] != color) continue;
    first_of_color = std::min(first_of_color, peer);
    const std::uint32_t peer_key = all[2 * peer + 1];
    if (peer_key < key || (peer_key == key && peer < rank().value)) ++position;
  }
  MPI_Comm group = MPI_COMM_NULL;
  {
    // Every rank has arrived, so that no wait of a peer depends on this lock for long.
    const auto lock = MpiProcess::instance().lock();
    check(MPI_Comm_split(control_.comm(), static_cast<int>(first_of_color), position, &group),
          "MPI_Comm_split");
  }
  auto part = std::make_unique<MpiCommunicator>(group, options_);
  part->set_timeout(timeout_);
  if (device() != nullptr) part->set_device(*device());
  return part;
}

// Ends together with the peers, or alone when one of them is lost.
void MpiCommunicator::close() noexcept try {
  if (failure_.is_set()) return;
  call(ControlCall::close, {});
  if (data_) data_->free();
  control_.free();
  stay_.ends_cleanly();
} catch (const Error&) {
  // call() recorded it and told the peers; a destructor has nobody else to tell.
}

}  // namespace

std::unique_ptr<Communicator> create_mpi_communicator(const MpiOptions& options) {
  MpiStay stay_until_built;
  auto communicator = std::make_unique<MpiCommunicator>(duplicate(MPI_COMM_WORLD), options);
  stay_until_built.ends_cleanly();
  return communicator;
}

}  // namespace strata
