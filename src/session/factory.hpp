// Picks the adapters that a configuration asks for: the one place that names them.
#pragma once

#include <memory>

#include "strata/block_io.hpp"
#include "strata/communicator.hpp"
#include "strata/config.hpp"
#include "strata/device.hpp"
#include "strata/log.hpp"

namespace strata {

// Whether this build has CUDA and a GPU is visible; `log` hears why not.
bool finds_gpu(const LogSink& log);

// What Session::runs_on_gpu() tells; `log` hears why not.
bool runs_on_gpu(const Config& config, const Communicator& communicator, const LogSink& log);

// `communicator` decides which device can be used, and which of several GPUs. Throws what the
// adapter throws, and Error(config) for a rank without a GPU.
std::unique_ptr<Device> make_device(const Config& config, Bytes arena,
                                    const Communicator& communicator, const LogSink& log);
std::unique_ptr<Device> make_cpu_device(Bytes arena);
std::unique_ptr<BlockIo> make_block_io(const Config& config, const LogSink& log);

}  // namespace strata
