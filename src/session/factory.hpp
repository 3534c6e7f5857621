// Picks the adapters that a configuration asks for: the one place that names them.
#pragma once

#include <memory>

#include "strata/block_io.hpp"
#include "strata/config.hpp"
#include "strata/device.hpp"
#include "strata/log.hpp"

namespace strata {

std::unique_ptr<Device> make_device(Bytes arena);
std::unique_ptr<BlockIo> make_block_io(const Config& config, const LogSink& log);

}  // namespace strata
