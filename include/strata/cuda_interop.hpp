// Where a program that has CUDA streams of its own meets a session's device. The one public header
// that names a type of CUDA, by forward declaration: it needs no CUDA header and builds everywhere.
// Thread: any. Nothing here blocks.
#pragma once

#include <string_view>

#include "strata/device.hpp"

struct CUstream_st;  // cudaStream_t points to it (driver_types.h)

namespace strata {

// The CUDA stream behind a stream of `device`, for kernels and libraries of the program. It lives
// until the device's close(). Throws Error(not_supported) unless `device` is a CUDA device.
CUstream_st* to_cuda_stream(Device& device, StreamId stream);

// Makes a CUDA stream of the program (a libtorch stream, say) usable wherever a StreamId is asked
// for. The program keeps it: it must outlive the session and is not destroyed by it. Adopt a stream
// once and keep the StreamId. Throws Error(not_supported) unless `device` is a CUDA device.
StreamId from_cuda_stream(Device& device, CUstream_st* stream, std::string_view name);

// The index of the GPU, as cudaSetDevice() takes it. Calls of the library make it the calling
// thread's current device. Throws Error(not_supported) unless `device` is a CUDA device.
int cuda_device_index(Device& device);

}  // namespace strata
