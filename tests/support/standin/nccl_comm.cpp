// Cliques and communicators: how they begin, end and fail, and the entry points for that.
#include <algorithm>
#include <cstring>

#include "base/rng.hpp"
#include "support/standin/nccl.hpp"

namespace strata::test::standin {
namespace {

constexpr std::uint64_t kPollKey = 0x6E63636C;
constexpr std::uint64_t kMaxPolls = 3;

std::string bytes_of(const ncclUniqueId& id) { return {id.internal, sizeof(id.internal)}; }

// NCCL wants a GPU of its own for every rank.
void check_devices(Clique& clique) {
  std::map<const Gpu*, int> ranks;
  for (const auto& [rank, comm] : clique.members) {
    const auto [other, fresh] = ranks.emplace(comm->gpu, rank);
    if (fresh) continue;
    clique.result = ncclInvalidUsage;
    clique.message = fmt::format("Duplicate GPU detected : rank {} and rank {} both on device {}",
                                 other->second, rank, comm->gpu->index);
  }
}

void join(Runtime& runtime, Clique& clique, const std::shared_ptr<Comm>& comm, int size) {
  if (clique.members.empty()) clique.size = size;
  if (clique.size != size) {
    refuse_nccl(runtime, ncclInvalidArgument, "rank {} says {} ranks, and another rank {}",
                comm->rank, size, clique.size);
  }
  if (clique.complete) {
    refuse_nccl(runtime, ncclInvalidUsage, "the unique id of clique {} is used again",
                clique.number);
  }
  if (!clique.members.emplace(comm->rank, comm).second) {
    refuse_nccl(runtime, ncclInvalidUsage, "rank {} joins clique {} twice", comm->rank,
                clique.number);
  }
  // Where a rank gave up before, those who come later wait in vain, as on hardware.
  if (clique.dead || static_cast<int>(clique.members.size()) < size) return;
  clique.complete = true;
  check_devices(clique);
  runtime.changed.notify_all();
}

ncclResult_t init_rank(Runtime& runtime, Runtime::Lock& lock, ncclComm_t* handle, int size,
                       const ncclUniqueId& id, int rank, bool blocking) {
  if (handle == nullptr || size < 1 || rank < 0 || rank >= size) return ncclInvalidArgument;
  *handle = nullptr;
  if (runtime.gpu_count() == 0) return ncclUnhandledCudaError;
  Runtime::require_alive(runtime.current_gpu());
  const auto clique = runtime.nccl->clique(id);
  if (clique == nullptr) {
    refuse_nccl(runtime, ncclInvalidArgument, "the unique id is not of ncclGetUniqueId");
  }
  auto comm = std::make_shared<Comm>();
  comm->clique = clique;
  comm->rank = rank;
  comm->gpu = &runtime.current_gpu();
  comm->blocking = blocking;
  join(runtime, *clique, comm, size);
  *handle = runtime.nccl->comms.add(comm);
  return start_in_group(runtime, lock, std::move(comm), handle);
}

// Lets the communicator's work run, as it would on hardware without anybody's help.
void demand(const Comm& comm) {
  for (const auto& [gpu, stream] : comm.used) gpu->device.demand(stream);
}

void wait_until_quiet(Runtime& runtime, Runtime::Lock& lock, const Comm& comm) {
  demand(comm);
  runtime.changed.wait(lock, [&] { return comm.running == 0 || comm.aborted || runtime.ending; });
}

// Reads the config as NCCL does: -1 if it is not one.
int blocking_of(const ncclConfig_t* config) {
  if (config == nullptr) return 1;
  const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
  if (config->magic != fresh.magic || config->size != fresh.size) return -1;
  if (config->blocking == NCCL_CONFIG_UNDEF_INT) return 1;
  return config->blocking == 0 || config->blocking == 1 ? config->blocking : -1;
}

}  // namespace

Nccl::~Nccl() {
  // Communicators and their cliques own each other.
  for (const auto& [id, clique] : cliques_) {
    for (const auto& [rank, comm] : clique->members) comm->held.clear();
    clique->members.clear();
  }
}

void Nccl::tell_leaks(Runtime& runtime) const {
  for (const auto& [handle, comm] : comms.all()) {
    if (comm->excused) continue;
    runtime.violation(fmt::format("leak: communicator {}, rank {} of {}", comm->number, comm->rank,
                                  comm->clique->size));
  }
}

bool Nccl::is_registered(const void* address, Bytes size) const {
  const AddressRange range = range_of(address, size.value);
  for (const auto& [handle, comm] : comms.all()) {
    for (const auto& [key, registered] : comm->registered) {
      if (registered.begin < range.end && range.begin < registered.end) return true;
    }
  }
  return false;
}

ncclUniqueId Nccl::make_id(std::uint64_t run) {
  ncclUniqueId id{};
  fmt::format_to_n(id.internal, sizeof(id.internal) - 1, "stand-in run {} id {}", run, ++ids_);
  auto clique = std::make_shared<Clique>();
  clique->number = ids_;
  cliques_[bytes_of(id)] = std::move(clique);
  return id;
}

std::shared_ptr<Clique> Nccl::clique(const ncclUniqueId& id) const {
  const auto found = cliques_.find(bytes_of(id));
  return found == cliques_.end() ? nullptr : found->second;
}

int Nccl::draw_polls() {
  return static_cast<int>(rng::at(seed_ ^ kPollKey, draws_++) % (kMaxPolls + 1));
}

ncclResult_t Nccl::error_of(const Comm& comm) const {
  if (comm.error != ncclSuccess) return comm.error;
  const auto broken = broken_.find(comm.rank);
  if (broken != broken_.end()) return broken->second;
  return comm.gpu->lost == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t Nccl::settle(Runtime& runtime, const std::shared_ptr<Comm>& comm, bool poll) {
  const ncclResult_t error = error_of(*comm);
  if (error != ncclSuccess) return error;
  comm->in_progress = true;
  if (comm->polls > 0) {
    if (poll) --comm->polls;
    return ncclInProgress;
  }
  if (!comm->held.empty() && held_.contains(comm->rank)) return ncclInProgress;
  if (comm->state == Comm::State::starting) {
    if (!comm->clique->complete) return ncclInProgress;
    comm->error = comm->clique->result;
    if (comm->error == ncclSuccess) comm->state = Comm::State::ready;
  } else if (comm->state == Comm::State::finalizing) {
    demand(*comm);
    if (comm->running > 0) return ncclInProgress;
    comm->state = Comm::State::finalized;
  }
  comm->in_progress = false;
  for (const Issue& issue : comm->held) enqueue_collective(runtime, issue);
  comm->held.clear();
  return comm->error;
}

std::shared_ptr<Comm> find_comm(Runtime& runtime, ncclComm_t handle) {
  auto comm = runtime.nccl->comms.find(handle);
  if (comm == nullptr) {
    refuse_nccl(runtime, ncclInvalidArgument,
                "{:#x} is no communicator, or was destroyed or aborted before",
                reinterpret_cast<std::uintptr_t>(handle));
  }
  return comm;
}

std::shared_ptr<Comm> find_ready_comm(Runtime& runtime, ncclComm_t handle) {
  auto comm = find_comm(runtime, handle);
  const ncclResult_t error = runtime.nccl->error_of(*comm);
  if (error != ncclSuccess) throw NcclRefused{error};
  if (comm->in_progress) {
    refuse_nccl(runtime, ncclInvalidArgument,
                "communicator {} is used before ncclCommGetAsyncError told ncclSuccess",
                comm->number);
  }
  if (comm->state != Comm::State::ready) {
    refuse_nccl(runtime, ncclInvalidUsage, "communicator {} is {}", comm->number,
                comm->state == Comm::State::starting ? "not initialized" : "finalized");
  }
  return comm;
}

std::byte* device_buffer(Runtime& runtime, const Comm& comm, const void* address, std::size_t size,
                         std::string_view what) {
  try {
    return runtime.device_range(*comm.gpu, address, Bytes{size}, what);
  } catch (const Refused&) {
    throw NcclRefused{ncclInvalidArgument};
  }
}

ncclResult_t begin_nccl_call(Runtime& runtime, const char* name) {
  ThreadState& thread = thread_state();
  const auto planned = runtime.faults.next_nccl(name);
  if (thread.in_work) {
    runtime.violation(fmt::format("{} called by a function that runs on a stream", name));
    return ncclInvalidUsage;
  }
  thread.call = name;
  thread.nccl_error.clear();
  return planned ? planned->error : ncclSuccess;
}

ncclResult_t end_nccl_call(ncclResult_t result) {
  ThreadState& thread = thread_state();
  if (result != ncclSuccess && result != ncclInProgress) {
    spoil_group(result);
    if (thread.nccl_error.empty()) {
      thread.nccl_error = fmt::format("{}: {}", thread.call, ncclGetErrorString(result));
    }
  }
  if (!thread.in_work) thread.call = "";
  return result;
}

}  // namespace strata::test::standin

using namespace strata::test::standin;  // NOLINT(google-build-using-namespace): extern "C" below

ncclResult_t ncclGetVersion(int* version) {
  return nccl_call("ncclGetVersion", [=](Runtime& runtime, Runtime::Lock&) {
    if (version == nullptr) return ncclInvalidArgument;
    *version = runtime.options.nccl_version;
    return ncclSuccess;
  });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_call("ncclGetUniqueId", [=](Runtime& runtime, Runtime::Lock&) {
    if (id == nullptr) return ncclInvalidArgument;
    *id = runtime.nccl->make_id(runtime.run);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* handle, int size, ncclUniqueId id, int rank) {
  return nccl_call("ncclCommInitRank", [&](Runtime& runtime, Runtime::Lock& lock) {
    return init_rank(runtime, lock, handle, size, id, rank, true);
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return nccl_call("ncclCommInitRankConfig", [&](Runtime& runtime, Runtime::Lock& lock) {
    const int blocking = blocking_of(config);
    if (blocking < 0) return ncclInvalidArgument;
    return init_rank(runtime, lock, handle, size, id, rank, blocking == 1);
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return nccl_call("ncclCommFinalize", [=](Runtime& runtime, Runtime::Lock& lock) {
    const auto comm = find_ready_comm(runtime, handle);
    comm->state = Comm::State::finalizing;
    if (comm->blocking) {
      wait_until_quiet(runtime, lock, *comm);
    } else {
      comm->polls = runtime.nccl->draw_polls();
    }
    return runtime.nccl->settle(runtime, comm, false);
  });
}

// Without ncclCommFinalize, it does the same first.
ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return nccl_call(
      "ncclCommDestroy",
      [=](Runtime& runtime, Runtime::Lock& lock) {
        const auto comm = find_comm(runtime, handle);
        const ncclResult_t error = runtime.nccl->error_of(*comm);
        if (error != ncclSuccess) return error;
        if (comm->in_progress) {
          refuse_nccl(runtime, ncclInvalidArgument,
                      "communicator {} is destroyed before ncclCommGetAsyncError told ncclSuccess",
                      comm->number);
        }
        wait_until_quiet(runtime, lock, *comm);
        if (!comm->registered.empty()) {
          runtime.violation(fmt::format("leak: communicator {} still has {} registered buffers",
                                        comm->number, comm->registered.size()));
        }
        runtime.nccl->comms.remove(handle);
        return ncclSuccess;
      },
      [=](Runtime& runtime) { runtime.nccl->comms.excuse(handle); });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  return nccl_call(
      "ncclCommAbort",
      [=](Runtime& runtime, Runtime::Lock& lock) {
        const auto comm = find_comm(runtime, handle);
        comm->aborted = true;
        if (!comm->clique->complete) comm->clique->dead = true;
        runtime.nccl->comms.remove(handle);
        runtime.changed.notify_all();
        // Until its work has left, a peer that arrives could still complete it.
        runtime.changed.wait(lock, [&] { return comm->inside == 0; });
        return ncclSuccess;
      },
      [=](Runtime& runtime) { runtime.nccl->comms.excuse(handle); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  return nccl_call("ncclCommGetAsyncError", [=](Runtime& runtime, Runtime::Lock&) {
    if (error == nullptr) return ncclInvalidArgument;
    const auto comm = find_comm(runtime, handle);
    *error = runtime.nccl->settle(runtime, comm, true);
    if (*error == comm->clique->result) thread_state().nccl_error = comm->clique->message;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  return nccl_call("ncclCommCount", [=](Runtime& runtime, Runtime::Lock&) {
    if (count == nullptr) return ncclInvalidArgument;
    *count = find_ready_comm(runtime, handle)->clique->size;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  return nccl_call("ncclCommUserRank", [=](Runtime& runtime, Runtime::Lock&) {
    if (rank == nullptr) return ncclInvalidArgument;
    *rank = find_ready_comm(runtime, handle)->rank;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  return nccl_call("ncclCommCuDevice", [=](Runtime& runtime, Runtime::Lock&) {
    if (device == nullptr) return ncclInvalidArgument;
    *device = find_ready_comm(runtime, handle)->gpu->index;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommRegister(const ncclComm_t handle, void* buffer, size_t size, void** key) {
  return nccl_call("ncclCommRegister", [=](Runtime& runtime, Runtime::Lock&) {
    if (buffer == nullptr || size == 0 || key == nullptr) return ncclInvalidArgument;
    const auto comm = find_ready_comm(runtime, handle);
    device_buffer(runtime, *comm, buffer, size, "the buffer");
    static std::uintptr_t next = 0;  // guarded by the mutex
    *key = reinterpret_cast<void*>(++next);
    comm->registered[*key] = range_of(buffer, size);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void* key) {
  return nccl_call("ncclCommDeregister", [=](Runtime& runtime, Runtime::Lock&) {
    const auto comm = find_comm(runtime, handle);
    if (comm->registered.erase(key) == 0) {
      refuse_nccl(runtime, ncclInvalidArgument, "communicator {} has no such registration",
                  comm->number);
    }
    return ncclSuccess;
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) { return thread_state().nccl_error.c_str(); }
