// Collectives: what a call checks, how the ranks meet, and how the bytes move.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/reduce.hpp"
#include "support/standin/nccl.hpp"

namespace strata::test::standin {
namespace {

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather: return "all-gather";
    case CollectiveKind::reduce_scatter: return "reduce-scatter";
    case CollectiveKind::all_reduce: return "all-reduce";
    case CollectiveKind::broadcast: return "broadcast";
  }
  return "?";
}

// 0: no such type.
std::size_t size_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

std::optional<DType> strata_dtype(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat32: return DType::fp32;
    case ncclFloat16: return DType::fp16;
    case ncclBfloat16: return DType::bf16;
    default: return std::nullopt;
  }
}

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_reduce;
}

bool can_reduce(ncclDataType_t dtype, ncclRedOp_t op) {
  if (strata_dtype(dtype)) return op == ncclSum || (dtype == ncclFloat32 && op <= ncclMin);
  const bool is_fp8 = dtype == ncclFloat8e4m3 || dtype == ncclFloat8e5m2;
  return !is_fp8 && (op == ncclSum || op == ncclProd || op == ncclMax || op == ncclMin);
}

std::string describe(const Collective& part) {
  std::string text = fmt::format("{} of {} elements of dtype {}", name_of(part.kind), part.count,
                                 static_cast<int>(part.dtype));
  if (reduces(part.kind)) text += fmt::format(" with op {}", static_cast<int>(part.op));
  if (part.kind == CollectiveKind::broadcast) text += fmt::format(" from rank {}", part.root);
  return text;
}

bool is_same(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.count == b.count && a.dtype == b.dtype && a.op == b.op &&
         a.root == b.root;
}

using Inputs = std::vector<const void*>;

template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd: return static_cast<T>(a * b);
    case ncclMax: return std::max(a, b);
    case ncclMin: return std::min(a, b);
    default: return static_cast<T>(a + b);
  }
}

template <class T>
void reduce_typed(void* out, const Inputs& inputs, std::size_t count, ncclRedOp_t op) {
  for (std::size_t i = 0; i < count; ++i) {
    T value = static_cast<const T*>(inputs[0])[i];
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      value = combine(value, static_cast<const T*>(inputs[rank])[i], op);
    }
    static_cast<T*>(out)[i] = value;
  }
}

void reduce(void* out, const Inputs& inputs, const Collective& what) {
  const auto dtype = strata_dtype(what.dtype);
  if (dtype && what.op == ncclSum) return sum_in_rank_order(out, inputs, what.count, *dtype);
  switch (what.dtype) {
    case ncclInt8: return reduce_typed<std::int8_t>(out, inputs, what.count, what.op);
    case ncclUint8: return reduce_typed<std::uint8_t>(out, inputs, what.count, what.op);
    case ncclInt32: return reduce_typed<std::int32_t>(out, inputs, what.count, what.op);
    case ncclUint32: return reduce_typed<std::uint32_t>(out, inputs, what.count, what.op);
    case ncclInt64: return reduce_typed<std::int64_t>(out, inputs, what.count, what.op);
    case ncclUint64: return reduce_typed<std::uint64_t>(out, inputs, what.count, what.op);
    case ncclFloat64: return reduce_typed<double>(out, inputs, what.count, what.op);
    default: return reduce_typed<float>(out, inputs, what.count, what.op);
  }
}

// In place, source and destination are the same.
void move_bytes(std::byte* to, const std::byte* from, std::size_t size) {
  if (to != from) std::memcpy(to, from, size);
}

void run_all_gather(const std::map<int, Collective>& parts, std::size_t size) {
  for (const auto& [to, receiver] : parts) {
    for (const auto& [from, sender] : parts) {
      move_bytes(receiver.receive + static_cast<std::size_t>(from) * size, sender.send, size);
    }
  }
}

void run_reduce_scatter(const std::map<int, Collective>& parts, std::size_t size) {
  for (const auto& [rank, part] : parts) {
    Inputs inputs;
    for (const auto& [from, sender] : parts) {
      inputs.push_back(sender.send + static_cast<std::size_t>(rank) * size);
    }
    reduce(part.receive, inputs, part);
  }
}

void run_all_reduce(const std::map<int, Collective>& parts, std::size_t size) {
  Inputs inputs;
  for (const auto& [rank, part] : parts) inputs.push_back(part.send);
  std::vector<std::max_align_t> sum(size / sizeof(std::max_align_t) + 1);
  reduce(sum.data(), inputs, parts.begin()->second);
  for (const auto& [rank, part] : parts) std::memcpy(part.receive, sum.data(), size);
}

void run_broadcast(const std::map<int, Collective>& parts, std::size_t size) {
  const Collective& root = parts.at(parts.begin()->second.root);
  for (const auto& [rank, part] : parts) move_bytes(part.receive, root.send, size);
}

void run(const std::map<int, Collective>& parts) {
  const Collective& any = parts.begin()->second;
  const std::size_t size = any.count * size_of(any.dtype);
  if (size == 0) return;
  switch (any.kind) {
    case CollectiveKind::all_gather: return run_all_gather(parts, size);
    case CollectiveKind::reduce_scatter: return run_reduce_scatter(parts, size);
    case CollectiveKind::all_reduce: return run_all_reduce(parts, size);
    case CollectiveKind::broadcast: return run_broadcast(parts, size);
  }
}

// One rank's part of a round, from the enqueue until its function has run or was dropped.
class Part {
 public:
  Part(Runtime& runtime, std::shared_ptr<Comm> comm, const Collective& what)
      : runtime_(runtime), comm_(std::move(comm)), what_(what), number_(comm_->issued++) {
    ++comm_->running;
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() {
    const Runtime::Lock lock(runtime_.mutex());
    Round& round = this->round();
    if (!round.done) round.dead = true;
    if (++round.left == comm_->clique->size) comm_->clique->rounds.erase(number_);
    --comm_->running;
    runtime_.changed.notify_all();
  }

  // On the stream, without the mutex.
  void meet() {
    Runtime::Lock lock(runtime_.mutex());
    ++comm_->inside;
    Round& round = this->round();
    if (!gives_up()) arrive(round);
    runtime_.changed.wait(lock, [&] { return round.done || gives_up(); });
    // From here on nobody may use this rank's memory.
    if (!round.done) round.dead = true;
    --comm_->inside;
    runtime_.changed.notify_all();
  }

 private:
  Round& round() { return comm_->clique->rounds[number_]; }
  bool gives_up() const {
    return comm_->aborted || comm_->gpu->lost != cudaSuccess || runtime_.ending;
  }

  void arrive(Round& round) {
    if (!round.parts.empty()) check_match(round);
    round.parts.emplace(comm_->rank, what_);
    if (round.dead || static_cast<int>(round.parts.size()) < comm_->clique->size) return;
    if (std::any_of(round.parts.begin(), round.parts.end(),
                    [&](const auto& part) { return runtime_.nccl->is_broken(part.first); })) {
      return;
    }
    run(round.parts);
    round.done = true;
    runtime_.changed.notify_all();
  }

  void check_match(Round& round) {
    const auto& [rank, other] = *round.parts.begin();
    if (is_same(other, what_)) return;
    round.dead = true;
    runtime_.violation(fmt::format("collective {} of clique {}: rank {} calls {}, and rank {} {}",
                                   number_, comm_->clique->number, comm_->rank, describe(what_),
                                   rank, describe(other)));
    for (const auto& [member, comm] : comm_->clique->members) {
      if (comm->error == ncclSuccess) comm->error = ncclInternalError;
    }
  }

  Runtime& runtime_;
  const std::shared_ptr<Comm> comm_;
  const Collective what_;
  const std::uint64_t number_;
};

// Buffers of one rank, as element ranges of the call.
struct Buffers {
  const void* send = nullptr;  // null: not used
  std::size_t send_elems = 0;
  void* receive = nullptr;
  std::size_t receive_elems = 0;
  // Where `send` stands in `receive` (or the other way round) when the call is in place.
  std::size_t in_place_elems = 0;
};

void add_access(Runtime& runtime, Issue& issue, const void* address, std::size_t size,
                std::string_view what, bool writes) {
  if (size == 0) return;
  const std::byte* const bytes = device_buffer(runtime, *issue.comm, address, size, what);
  issue.accesses.push_back({bytes, Bytes{size}, writes});
}

// Buffers that overlap must do so as NCCL's in-place rule says.
void check_overlap(Runtime& runtime, const Buffers& buffers, std::size_t elem_size) {
  if (buffers.send == nullptr) return;
  const AddressRange send = range_of(buffers.send, buffers.send_elems * elem_size);
  const AddressRange receive = range_of(buffers.receive, buffers.receive_elems * elem_size);
  if (send.begin >= receive.end || receive.begin >= send.end) return;
  const std::size_t offset = buffers.in_place_elems * elem_size;
  const bool send_is_inside = buffers.send_elems < buffers.receive_elems;
  const bool in_place =
      send_is_inside ? send.begin == receive.begin + offset : receive.begin == send.begin + offset;
  if (!in_place) {
    refuse_nccl(runtime, ncclInvalidArgument, "the buffers overlap, but not as in-place ones do");
  }
}

void check_arguments(Runtime& runtime, const Comm& comm, const Collective& what) {
  if (size_of(what.dtype) == 0) throw NcclRefused{ncclInvalidArgument};
  if (what.root < 0 || what.root >= comm.clique->size) throw NcclRefused{ncclInvalidArgument};
  if (reduces(what.kind) && !can_reduce(what.dtype, what.op)) {
    refuse_nccl(runtime, ncclInvalidArgument, "op {} of dtype {} is not stood in",
                static_cast<int>(what.op), static_cast<int>(what.dtype));
  }
}

template <class BuffersOf>
ncclResult_t collective(const char* name, const Collective& what, ncclComm_t handle,
                        cudaStream_t stream, BuffersOf buffers_of) noexcept {
  return nccl_call(name, [&](Runtime& runtime, Runtime::Lock& lock) {
    Issue issue{find_ready_comm(runtime, handle), runtime.stream_here(stream), what, {}};
    Gpu& gpu = *issue.comm->gpu;
    if (issue.stream->gpu != &gpu) {
      refuse_nccl(runtime, ncclInvalidUsage,
                  "communicator {} belongs to device {} and stream {} to device {}",
                  issue.comm->number, gpu.index, issue.stream->number, issue.stream->gpu->index);
    }
    check_arguments(runtime, *issue.comm, what);
    const Buffers buffers = buffers_of(issue.comm->rank, issue.comm->clique->size);
    const std::size_t elem_size = size_of(what.dtype);
    check_overlap(runtime, buffers, elem_size);
    if (buffers.send != nullptr || what.kind != CollectiveKind::broadcast) {
      add_access(runtime, issue, buffers.send, buffers.send_elems * elem_size, "the send buffer",
                 false);
      issue.part.send = static_cast<const std::byte*>(runtime.host_address(buffers.send));
    }
    add_access(runtime, issue, buffers.receive, buffers.receive_elems * elem_size,
               "the receive buffer", true);
    issue.part.receive = static_cast<std::byte*>(runtime.host_address(buffers.receive));
    return issue_in_group(runtime, lock, std::move(issue));
  });
}

}  // namespace

void enqueue_collective(Runtime& runtime, const Issue& issue) {
  Comm& comm = *issue.comm;
  if (issue.stream->destroyed) {
    runtime.violation(
        fmt::format("stream {} was destroyed before collective {} of communicator {} "
                    "was on it",
                    issue.stream->number, comm.issued, comm.number));
  }
  const std::pair used{issue.stream->gpu, issue.stream->id};
  if (std::find(comm.used.begin(), comm.used.end(), used) == comm.used.end()) {
    comm.used.push_back(used);
  }
  // Owned by the function alone: it dies where the function does, without the mutex.
  auto part = std::make_shared<Part>(runtime, issue.comm, issue.part);
  runtime.enqueue(
      *issue.stream, name_of(issue.part.kind), [part = std::move(part)] { part->meet(); },
      issue.accesses);
}

}  // namespace strata::test::standin

using namespace strata::test::standin;  // NOLINT(google-build-using-namespace): extern "C" below

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, cudaStream_t stream) {
  const Collective what{.kind = CollectiveKind::all_gather, .count = count, .dtype = dtype};
  return collective("ncclAllGather", what, comm, stream, [=](int rank, int size) {
    return Buffers{send, count, receive, count * static_cast<std::size_t>(size),
                   count * static_cast<std::size_t>(rank)};
  });
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const Collective what{
      .kind = CollectiveKind::reduce_scatter, .count = count, .dtype = dtype, .op = op};
  return collective("ncclReduceScatter", what, comm, stream, [=](int rank, int size) {
    return Buffers{send, count * static_cast<std::size_t>(size), receive, count,
                   count * static_cast<std::size_t>(rank)};
  });
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const Collective what{
      .kind = CollectiveKind::all_reduce, .count = count, .dtype = dtype, .op = op};
  return collective("ncclAllReduce", what, comm, stream, [=](int, int) {
    return Buffers{send, count, receive, count, 0};
  });
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const Collective what{
      .kind = CollectiveKind::broadcast, .count = count, .dtype = dtype, .root = root};
  return collective("ncclBroadcast", what, comm, stream, [=](int rank, int) {
    const bool sends = rank == root;
    return Buffers{sends ? send : nullptr, sends ? count : 0, receive, count, 0};
  });
}
