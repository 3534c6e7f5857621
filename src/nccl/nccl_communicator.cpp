#include "nccl/nccl_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.hpp"
#include "base/first_failure.hpp"
#include "cuda/check.hpp"
#include "cuda/cuda_device.hpp"
#include "nccl/check.hpp"
#include "nccl/nccl_handle.hpp"
#include "nccl/watchdog.hpp"

namespace strata {
namespace {

using nccl::Handle;
using nccl::Pending;
using nccl::Watchdog;

using Clock = std::chrono::steady_clock;

// A collective that takes this long makes us look at peers that leave.
constexpr std::chrono::milliseconds kSuspicious{200};
// How long peers are asked where they are; their control planes answer by themselves.
constexpr std::chrono::milliseconds kAskPeers{1000};
constexpr std::chrono::milliseconds kPoll{5};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::fp16: return ncclFloat16;
  }
  return ncclFloat32;
}

// What each rank tells of itself before NCCL starts. Plain bytes that ranks send to each other.
struct Introduction {
  std::uint32_t has_gpu = 0;
  std::int32_t gpu_index = 0;
  std::int32_t nccl_version = 0;
  std::array<char, 16> gpu{};
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<tcp::ControlPlane> control, LogSink log)
      : control_(std::move(control)), plane_(*control_), log_(std::move(log)) {
    control_->on_failure([this](const Error& error) { fail(error); });
  }

  ~NcclCommunicator() override {
    close();
    {
      const std::lock_guard lock(wake_mutex_);
      to_wake_ = nullptr;
    }
    watchdog_.reset();
    control_.reset();  // its thread calls fail()
  }

  std::string_view name() const override { return "nccl"; }
  Rank rank() const override { return Rank{control_->rank()}; }
  std::uint32_t size() const override { return control_->size(); }
  Rank host_rank() const override { return control_->host_rank(); }
  std::uint32_t host_size() const override { return control_->host_size(); }
  Bytes staging_bytes() const override { return Bytes{0}; }

  void attach(Device& device) override;

  void all_gather(StreamId stream, std::span<const ShardedBuffer> buffers) override;
  void reduce_scatter(StreamId stream, std::span<const ShardedBuffer> buffers) override;
  void broadcast(StreamId stream, void* data, Bytes size, Rank root) override;
  void all_reduce(StreamId stream, void* data, std::uint64_t count_elems, DType dtype) override;

  std::unique_ptr<Communicator> split(std::uint32_t color, std::uint32_t key) override;

  std::vector<std::byte> exchange(std::span<const std::byte> mine) override {
    STRATA_ASSERT(mine.size() <= kMaxExchange, "exchange() is for small messages");
    return call(ControlCall::exchange, mine);
  }

  void set_timeout(std::chrono::milliseconds timeout) override { control_->set_timeout(timeout); }
  std::optional<Error> failure() const override { return failure_.get(); }

  void abort(std::string_view reason) override {
    fail(
        Error(ErrorCode::rank_lost, fmt::format("this rank gave up: {}", reason), {.rank = rank()}),
        reason);
  }

 private:
  std::vector<std::byte> call(ControlCall which, std::span<const std::byte> mine);
  std::vector<Introduction> introduce(const CudaDevice* device);
  void check_introductions(const std::vector<Introduction>& all) const;
  ncclUniqueId agree_on_id();

  template <class Calls>
  void enqueue(std::string_view what, StreamId stream, Calls&& calls);
  template <class Call>
  void enqueue_buffers(std::string_view what, StreamId stream,
                       std::span<const ShardedBuffer> buffers, Call&& call);
  void fail(const Error& error) { fail(error, error.what()); }
  void fail(const Error& error, std::string_view reason);
  void register_arena(std::span<std::byte> arena);
  void look();
  double timeout_seconds() const {
    return std::chrono::duration<double>(control_->timeout()).count();
  }
  // Ends a wait of the handle by what has failed, or after the timeout by what `error` tells then.
  Handle::Interrupt until_timeout(std::function<Error()> error) const;
  Error overdue(std::string_view what, std::uint64_t number);
  void late(const Pending& pending, std::chrono::nanoseconds waited);
  std::string who_is_behind(std::uint64_t number);
  void close() noexcept;

  std::unique_ptr<tcp::ControlPlane> control_;
  tcp::ControlPlane& plane_;  // control_, also while that ends and its thread still calls fail()
  const LogSink log_;
  FirstFailure failure_;

  // Set by attach(). Collectives use them from one thread at a time.
  CudaDevice* device_ = nullptr;
  std::optional<Handle> handle_;
  std::uint64_t enqueued_ = 0;
  Event last_event_;
  std::unique_ptr<Watchdog> watchdog_;
  std::mutex wake_mutex_;
  Watchdog* to_wake_ = nullptr;  // guarded by wake_mutex_
};

std::vector<std::byte> NcclCommunicator::call(ControlCall which, std::span<const std::byte> mine) {
  failure_.throw_if_set();
  try {
    return control_->call(which, mine);
  } catch (const Error& error) {
    fail(error);
    throw;
  }
}

void NcclCommunicator::fail(const Error& error, std::string_view reason) {
  if (!failure_.record(error)) return;
  plane_.give_up(reason);
  const std::lock_guard lock(wake_mutex_);
  if (to_wake_ != nullptr) to_wake_->wake();
}

Handle::Interrupt NcclCommunicator::until_timeout(std::function<Error()> error) const {
  return [this, error = std::move(error), deadline = Clock::now() + control_->timeout()] {
    failure_.throw_if_set();
    if (Clock::now() > deadline) throw Error(error());
  };
}

std::vector<Introduction> NcclCommunicator::introduce(const CudaDevice* device) {
  Introduction mine;
  int version = 0;
  nccl::check(ncclGetVersion(&version), "ncclGetVersion");
  mine.nccl_version = version;
  if (device != nullptr) {
    mine.has_gpu = 1;
    mine.gpu_index = device->index();
    mine.gpu = device->uuid();
  }
  const std::vector<std::byte> bytes =
      call(ControlCall::attach, std::as_bytes(std::span(&mine, 1)));
  std::vector<Introduction> all(size());
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

// The same error on every rank: all know the same of each other.
void NcclCommunicator::check_introductions(const std::vector<Introduction>& all) const {
  for (std::uint32_t r = 0; r < all.size(); ++r) {
    if (all[r].has_gpu == 0) {
      throw Error(ErrorCode::not_supported,
                  "the NCCL communicator needs a CUDA device on every rank: set device.kind to "
                  "\"cuda\", or use the MPI or TCP communicator",
                  {.rank = Rank{r}});
    }
    if (all[r].nccl_version != all[0].nccl_version) {
      throw Error(ErrorCode::not_supported,
                  fmt::format("rank 0 runs NCCL {} and rank {} runs {}: all ranks need the same",
                              nccl::version_text(all[0].nccl_version), r,
                              nccl::version_text(all[r].nccl_version)));
    }
    for (std::uint32_t other = 0; other < r; ++other) {
      if (all[other].gpu != all[r].gpu) continue;
      throw Error(
          ErrorCode::config,
          fmt::format(
              "ranks {} and {} use the same GPU (index {} and {}): NCCL needs one for each; "
              "start no more ranks than GPUs, or give each its own by "
              "CUDA_VISIBLE_DEVICES",
              other, r, all[other].gpu_index, all[r].gpu_index));
    }
  }
}

ncclUniqueId NcclCommunicator::agree_on_id() {
  ncclUniqueId mine{};
  if (rank().value == 0) nccl::check(ncclGetUniqueId(&mine), "ncclGetUniqueId");
  const std::vector<std::byte> all = call(ControlCall::attach, std::as_bytes(std::span(&mine, 1)));
  ncclUniqueId id{};
  std::memcpy(&id, all.data(), sizeof(id));
  return id;
}

void NcclCommunicator::attach(Device& device) {
  STRATA_ASSERT(!handle_, "attach() of a communicator that is attached already");
  auto* const gpu = dynamic_cast<CudaDevice*>(&device);
  try {
    check_introductions(introduce(gpu));
    const ncclUniqueId id = agree_on_id();
    cuda::check(cuda::enter(gpu->index()), "cudaSetDevice");
    handle_.emplace(id, rank().value, size(), until_timeout([this] {
                      return Error(ErrorCode::rank_lost,
                                   fmt::format("NCCL did not connect the ranks within {:.3g} s: "
                                               "see that NCCL_SOCKET_IFNAME names a network that "
                                               "joins them (NCCL_DEBUG=INFO tells more)",
                                               timeout_seconds()));
                    }));
    register_arena(gpu->arena());
  } catch (const Error& error) {
    fail(error);
    throw;
  }
  device_ = gpu;
  watchdog_ = std::make_unique<Watchdog>(
      *gpu, Watchdog::Hooks{
                .look = [this] { look(); },
                .late = [this](const Pending& pending, auto waited) { late(pending, waited); }});
  const std::lock_guard lock(wake_mutex_);
  to_wake_ = watchdog_.get();
  if (failure_.is_set()) to_wake_->wake();
}

// On all ranks or on none: NCCL does not promise what a mixture does.
void NcclCommunicator::register_arena(std::span<std::byte> arena) {
  const std::byte mine{handle_->register_memory(arena, log_)};
  const std::vector<std::byte> all = call(ControlCall::attach, {&mine, 1});
  if (std::find(all.begin(), all.end(), std::byte{0}) != all.end()) handle_->deregister_memory();
}

// A failure ends what is on the streams; NCCL's own are found here. Others can tell more of it: the
// control plane which rank is lost, the device what became of it.
void NcclCommunicator::look() {
  const ncclResult_t result = handle_->async_error();
  if (result != ncclSuccess && result != ncclInProgress) {
    const auto end = Clock::now() + kAskPeers;
    while (!failure_.is_set() && !device_->failure() && Clock::now() < end) {
      std::this_thread::sleep_for(kPoll);
    }
    fail(device_->failure().value_or(handle_->error_of(result, "an NCCL collective")));
  }
  if (const auto error = device_->failure()) fail(*error);
  if (failure_.is_set()) handle_->abort();
}

void NcclCommunicator::late(const Pending& pending, std::chrono::nanoseconds waited) {
  if (failure_.is_set() || waited < kSuspicious) return;
  // A peer that is done and has not come this far will not come at all.
  const std::vector<std::uint32_t> leaving = control_->leaving();
  if (!leaving.empty()) {
    const auto progress = control_->ask_progress(kAskPeers);
    for (const std::uint32_t peer : leaving) {
      if (progress[peer] && *progress[peer] >= pending.number) continue;
      fail(closed_error(peer, rank().value, pending.what));
      handle_->abort();
      return;
    }
  }
  if (waited < control_->timeout()) return;
  fail(overdue(pending.what, pending.number));
  handle_->abort();
}

Error NcclCommunicator::overdue(std::string_view what, std::uint64_t number) {
  return Error(ErrorCode::rank_lost,
               fmt::format("{} number {} did not finish within {:.3g} s: {}", what, number,
                           timeout_seconds(), who_is_behind(number)));
}

std::string NcclCommunicator::who_is_behind(std::uint64_t number) {
  const auto progress = control_->ask_progress(kAskPeers);
  std::string behind;
  for (std::uint32_t r = 0; r < progress.size(); ++r) {
    if (r == rank().value || (progress[r] && *progress[r] >= number)) continue;
    behind += fmt::format("{}rank {} {}", behind.empty() ? "" : ", ", r,
                          progress[r] ? fmt::format("has enqueued {}", *progress[r])
                                      : std::string("does not answer"));
  }
  return behind.empty() ? "all ranks have enqueued it, so the network or a GPU is at fault"
                        : behind;
}

// Collectives of one communicator run in the order of the calls, on whatever streams.
template <class Calls>
void NcclCommunicator::enqueue(std::string_view what, StreamId stream, Calls&& calls) {
  STRATA_ASSERT(device_ != nullptr, "attach() comes before the first collective");
  if (failure_.is_set()) return;
  try {
    if (last_event_.recorded()) device_->wait(stream, last_event_);
    const Event ready = device_->record(stream);
    cuda::check(cuda::enter(device_->index()), "cudaSetDevice");
    control_->set_progress(++enqueued_);
    const cudaStream_t native = device_->stream(stream);
    // NCCL connects ranks at their first collective of a kind: that needs the peers, too.
    const auto deadline = Clock::now() + control_->timeout();
    const auto interrupt = [&] {
      failure_.throw_if_set();
      if (Clock::now() > deadline) throw overdue(what, enqueued_);
    };
    const bool stands =
        handle_->enqueue(what, interrupt, [&](ncclComm_t comm) { return calls(comm, native); });
    if (!stands) return;
    last_event_ = device_->record(stream);
    watchdog_->add({what, enqueued_, ready, last_event_});
  } catch (const Error& error) {
    fail(error);
  }
}

// call(own, buffer, native, comm) for each buffer that has elements; `own` is this rank's shard.
template <class Call>
void NcclCommunicator::enqueue_buffers(std::string_view what, StreamId stream,
                                       std::span<const ShardedBuffer> buffers, Call&& call) {
  enqueue(what, stream, [&](ncclComm_t comm, cudaStream_t native) {
    ncclResult_t result = ncclSuccess;
    for (const ShardedBuffer& buffer : buffers) {
      if (buffer.shard_elems == 0) continue;
      const std::uint64_t shard_bytes = buffer.shard_elems * size_of(buffer.dtype).value;
      std::byte* const own = static_cast<std::byte*>(buffer.data) + rank().value * shard_bytes;
      const ncclResult_t one = call(own, buffer, comm, native);
      if (one != ncclSuccess) result = one;
    }
    return result;
  });
}

void NcclCommunicator::all_gather(StreamId stream, std::span<const ShardedBuffer> buffers) {
  enqueue_buffers("all_gather", stream, buffers,
                  [](std::byte* own, const ShardedBuffer& buffer, auto comm, auto native) {
                    return ncclAllGather(own, buffer.data, buffer.shard_elems,
                                         type_of(buffer.dtype), comm, native);
                  });
}

void NcclCommunicator::reduce_scatter(StreamId stream, std::span<const ShardedBuffer> buffers) {
  enqueue_buffers("reduce_scatter", stream, buffers,
                  [](std::byte* own, const ShardedBuffer& buffer, auto comm, auto native) {
                    return ncclReduceScatter(buffer.data, own, buffer.shard_elems,
                                             type_of(buffer.dtype), ncclSum, comm, native);
                  });
}

void NcclCommunicator::broadcast(StreamId stream, void* data, Bytes size, Rank root) {
  STRATA_ASSERT(root.value < this->size(), "broadcast from a rank that does not exist");
  enqueue("broadcast", stream, [&](ncclComm_t comm, cudaStream_t native) {
    if (size == Bytes{}) return ncclSuccess;
    return ncclBroadcast(data, data, size.value, ncclUint8, static_cast<int>(root.value), comm,
                         native);
  });
}

void NcclCommunicator::all_reduce(StreamId stream, void* data, std::uint64_t count_elems,
                                  DType dtype) {
  enqueue("all_reduce", stream, [&](ncclComm_t comm, cudaStream_t native) {
    if (count_elems == 0) return ncclSuccess;
    return ncclAllReduce(data, data, count_elems, type_of(dtype), ncclSum, comm, native);
  });
}

std::unique_ptr<Communicator> NcclCommunicator::split(std::uint32_t color, std::uint32_t key) {
  failure_.throw_if_set();
  std::unique_ptr<tcp::ControlPlane> control;
  try {
    control = control_->split(color, key);
  } catch (const Error& error) {
    fail(error);
    throw;
  }
  auto part = std::make_unique<NcclCommunicator>(std::move(control), log_);
  if (device_ != nullptr) part->attach(*device_);
  return part;
}

// Ends together with the peers, or alone when one of them is lost.
void NcclCommunicator::close() noexcept try {
  if (!failure_.is_set() && size() > 1) call(ControlCall::close, {});
  if (!failure_.is_set() && handle_) {
    handle_->finalize(until_timeout(
        [] { return Error(ErrorCode::rank_lost, "NCCL did not end within the timeout"); }));
  }
  if (handle_) handle_->abort();
} catch (const Error& error) {
  fail(error);  // a destructor has nobody else to tell
  if (handle_) handle_->abort();
}

}  // namespace

std::unique_ptr<Communicator> create_nccl_communicator(std::unique_ptr<tcp::ControlPlane> control,
                                                       LogSink log) {
  return std::make_unique<NcclCommunicator>(std::move(control), std::move(log));
}

}  // namespace strata
