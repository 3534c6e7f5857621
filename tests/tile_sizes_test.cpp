// Tiles of every awkward size through the real adapters, on small and large sectors: what was
// written is what is read.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "cpu/cpu_device.hpp"
#include "engine/tile_io.hpp"
#include "engine/worker_pool.hpp"
#include "memory/region.hpp"
#include "session/factory.hpp"
#include "strata/config.hpp"
#include "support/loop_file_system.hpp"

namespace strata::test {
namespace {

struct Case {
  const char* backend;
  unsigned depth;
  Bytes sector;  // 0: the disk below the test's directory
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.backend) + "_depth_" + std::to_string(info.param.depth) +
         (info.param.sector == 0_B ? "_disk"
                                   : "_sector_" + std::to_string(info.param.sector.value));
}

class TileSizes : public testing::TestWithParam<Case> {};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* backend : {"auto", "posix"}) {
    for (const unsigned depth : {1U, 3U, 8U}) {
      for (const Bytes sector : {0_B, 512_B, 4_KiB}) all.push_back({backend, depth, sector});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Adapters, TileSizes, testing::ValuesIn(cases()), name_of);

std::byte content(std::size_t tile, std::size_t at) {
  return static_cast<std::byte>(rng::at(tile, at / 8) >> (at % 8 * 8));
}

TEST_P(TileSizes, AreRoundTripsToTheByte) {
  const ScratchDirectory scratch;
  std::unique_ptr<LoopFileSystem> system;
  std::string directory = scratch.path();
  if (GetParam().sector > 0_B) {
    std::string why_not;
    system = LoopFileSystem::mount({.size = 32_MiB, .sector = GetParam().sector}, why_not);
    if (system == nullptr) GTEST_SKIP() << why_not;
    directory = system->path();
  }
  Config config;
  if (GetParam().backend == std::string("posix")) config.nvme.backend = Config::IoBackend::posix;
  config.nvme.queue_depth = GetParam().depth;
  const std::unique_ptr<BlockIo> io = make_block_io(config, {});

  constexpr Bytes kSlab = 1_MiB;
  std::vector<Bytes> sizes{1_B, 2_B, 1_MiB, 1_MiB - 1_B};
  for (const std::uint64_t n : {1U, 2U, 7U, 33U}) {
    for (const Bytes size : {n * 512_B, n * 512_B + 1_B, n * 1024_B + 2_B, n * 4096_B - 1_B}) {
      sizes.push_back(size);
    }
  }
  ExtentStore store(
      *io, ExtentStoreOptions{.directories = {directory}, .weights = {}, .run = "r", .rank = {}});
  std::vector<ExtentId> extents;
  for (const Bytes size : sizes) extents.push_back(store.add(size, 0));
  store.open();
  const HostRegion memory(kSlab * sizes.size(), {});
  io->use_memory(memory.memory());
  CpuDevice device({.arena = 1_MiB});
  WorkerPool workers(2);
  {
    Executor executor(device, *io, workers);
    TileIo tiles(executor, store, {.name = [](ExtentId) { return TileName{}; }});
    const EngineThread thread(executor);
    std::vector<TileBuffer> buffers;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      buffers.push_back({extents[i], memory.memory().data() + i * kSlab.value});
    }
    const auto all = [&](bool write) -> Task<> {
      TaskGroup group;
      for (const TileBuffer& buffer : buffers) {
        group.start(write ? tiles.write(buffer) : tiles.read(buffer, IoPriority::stage));
      }
      co_await group.join();
    };
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (std::size_t at = 0; at < sizes[i].value; ++at) buffers[i].data[at] = content(i, at);
    }
    executor.run_blocking(all(true));
    std::ranges::fill(memory.memory(), std::byte{0xEE});
    executor.run_blocking(all(false));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (std::size_t at = 0; at < sizes[i].value; ++at) {
        ASSERT_EQ(buffers[i].data[at], content(i, at)) << sizes[i].value << " bytes, at " << at;
      }
    }
  }
  io->use_memory({});
  store.close();
}

}  // namespace
}  // namespace strata::test
