// Runs of the toy program on a test machine, its files on a simulated disk.
#pragma once

#include <cstdint>
#include <functional>

#include "support/test_machine.hpp"
#include "support/toy_program.hpp"

namespace strata::test {

Backends backends_on(TestMachine& machine, Rank rank, const Config& config);

ToyResult run_alone(const ToyOptions& options, const Config& config,
                    const std::function<void(Session&)>& inspect = {});

// Rank 0's result; all ranks' hashes are asserted equal.
ToyResult run_on_ranks(std::uint32_t ranks, const ToyOptions& options, const Config& config);

// A session of the toy model in which every unit has states.
Session open_initialized(TestMachine& machine, Rank rank, const Config& config,
                         SessionOptions options = {});

struct Placed {
  const char* name;
  TierFractions param, grad, optimizer;
};
inline constexpr Placed kPlacements[] = {
    {"device", kDevice, kDevice, kDevice}, {"host", kHost, kHost, kHost},
    {"nvme", kNvme, kNvme, kNvme},         {"optimizer on nvme", kHost, kHost, kNvme},
    {"mixed", kMixed, kMixed, kMixed},     {"crossed", kNvme, kDevice, kMixed},
};

}  // namespace strata::test
