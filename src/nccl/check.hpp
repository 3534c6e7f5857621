// The one place that turns a result of NCCL into an Error. Thread: any.
#pragma once

#include <nccl.h>

#include <string_view>

#include "strata/error.hpp"

namespace strata::nccl {

// "ncclAllGather failed: remote process exited or there was a network error (ncclRemoteError):
// <what NCCL says about it>". `comm` may be null.
Error error_of(ncclResult_t result, std::string_view call, ncclComm_t comm);

// Throws error_of() unless `result` is ncclSuccess.
void check(ncclResult_t result, std::string_view call, ncclComm_t comm = nullptr);

// "2.28.9" for 22809.
std::string version_text(int version);

}  // namespace strata::nccl
