// One ncclComm_t, made without blocking mode: a peer that does not come ends a wait of ours at its
// deadline instead of hanging inside NCCL.
// Thread: any; calls into NCCL are one at a time. After abort() nothing reaches NCCL any more.
#pragma once

#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>

#include "strata/error.hpp"
#include "strata/log.hpp"

namespace strata::nccl {

class Handle {
 public:
  // Asked while a call waits for peers: throws what should end the wait.
  using Interrupt = std::function<void()>;

  // Collective over `size` ranks, each on its own GPU, which is the current device. Blocks until
  // all have come or `interrupt` throws.
  Handle(const ncclUniqueId& id, std::uint32_t rank, std::uint32_t size,
         const Interrupt& interrupt);
  // Ends without waiting for anybody.
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // Lets NCCL use this memory directly where it can; `log` hears why it cannot. False: it does not.
  bool register_memory(std::span<std::byte> memory, const LogSink& log);
  void deregister_memory();

  // Makes the NCCL calls of calls(comm) inside a group and waits until the group stands on its
  // stream; false when aborted meanwhile. Throws Error. Blocks while NCCL connects to peers.
  bool enqueue(std::string_view what, const Interrupt& interrupt,
               const std::function<ncclResult_t(ncclComm_t)>& calls);

  // ncclSuccess, ncclInProgress, or what NCCL found wrong since.
  ncclResult_t async_error();
  Error error_of(ncclResult_t result, std::string_view call);

  // Ends together with the peers. Collective. Blocks until they have, or `interrupt` throws.
  void finalize(const Interrupt& interrupt);

  // Ends this rank's part at once; its work on streams returns. Idempotent.
  void abort() noexcept;

 private:
  // Polls until NCCL has done what it was asked for. False when aborted meanwhile.
  bool settle(ncclResult_t result, std::string_view what, const Interrupt& interrupt);

  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;     // guarded by mutex_; null: aborted
  void* registration_ = nullptr;  // guarded by mutex_
};

}  // namespace strata::nccl
