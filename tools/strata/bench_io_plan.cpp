#include "bench_io_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "strata/bytes.hpp"
#include "strata/error.hpp"

namespace strata::tool {
namespace {

constexpr Bytes kSmallestTile = 256_KiB;       // as engine.tile
constexpr unsigned kMostDepth = 256;           // as nvme.queue_depth
constexpr std::uint64_t kDefaultWindows = 16;  // in all files: 1 GiB
constexpr Bytes kMostBytes = 1024_GiB;         // more tiles than that are of no use
constexpr Bytes kManyTile = 2_MiB;
constexpr std::uint32_t kManyCount = 256;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

// Ascending, each once.
template <class T>
std::vector<T> choices(std::vector<T> given, std::vector<T> otherwise) {
  if (given.empty()) given = std::move(otherwise);
  std::ranges::sort(given);
  given.erase(std::unique(given.begin(), given.end()), given.end());
  return given;
}

void check_directories(const std::vector<std::string>& directories) {
  if (directories.empty()) refuse("name a directory with --dir");
  std::set<std::string> seen;
  for (const std::string& directory : directories) {
    if (directory.empty()) refuse("--dir is empty");
    if (!seen.insert(directory).second) refuse(fmt::format("--dir {} stands twice", directory));
  }
}

void check_tile(Bytes tile, Bytes window) {
  if (tile < kSmallestTile || !std::has_single_bit(tile.value)) {
    refuse(fmt::format("--tile {} is impossible; use 256KiB times a power of two",
                       format_bytes_exact(tile)));
  }
  if (tile > window) {
    refuse(fmt::format("--tile {} is larger than a window of {}", format_bytes_exact(tile),
                       format_bytes(window)));
  }
}

void check_depth(unsigned depth) {
  if (depth < 1 || depth > kMostDepth) {
    refuse(fmt::format("--depth {} is impossible; use 1 to {}", depth, kMostDepth));
  }
}

// Those that a window can keep in flight with one of the depths: with more it would end before the
// queue is full.
std::vector<Bytes> tiles_that_fit(const std::vector<Bytes>& tiles,
                                  const std::vector<unsigned>& depths, Bytes window) {
  std::vector<Bytes> fitting;
  for (const Bytes tile : tiles) {
    if (tile * depths.front() <= window) fitting.push_back(tile);
  }
  if (fitting.empty()) {
    refuse(
        fmt::format("--tile times --depth is more than the {} of a window; use smaller tiles or "
                    "a lower depth",
                    format_bytes(window)));
  }
  return fitting;
}

// At most half of the bytes for the many tensors, the rest in equal parts. Each directory holds a
// window of each tile size.
void deal_bytes(Bytes bytes, const std::vector<Bytes>& tiles, BenchIoPlan& plan) {
  const Bytes for_sets = plan.window * plan.directories * tiles.size();
  const Bytes smallest = for_sets + plan.window;
  if (bytes == Bytes{}) bytes = std::max(smallest, kDefaultWindows * plan.window);
  if (bytes < smallest) {
    refuse(fmt::format("--bytes {} is too small; these tiles and directories need {}",
                       format_bytes_exact(bytes), format_bytes_exact(smallest)));
  }
  if (bytes > kMostBytes) {
    refuse(fmt::format("--bytes {} is too large; {} are the most", format_bytes_exact(bytes),
                       format_bytes(kMostBytes)));
  }
  const Bytes for_many = std::min({kManyTile * kManyCount, bytes / 2, bytes - for_sets});
  plan.many = {kManyTile, static_cast<std::uint32_t>(for_many / kManyTile)};
  const Bytes each = (bytes - kManyTile * plan.many.count) / tiles.size();
  for (const Bytes tile : tiles) {
    plan.sets.push_back({tile, static_cast<std::uint32_t>(each / tile)});
  }
}

void pair_up(const std::vector<unsigned>& depths, BenchIoPlan& plan) {
  for (std::size_t set = 0; set < plan.sets.size(); ++set) {
    for (const unsigned depth : depths) {
      if (depth > plan.tiles_of(plan.sets[set].tile)) continue;
      plan.sweep.push_back({set, depth});
      plan.most_depth = std::max(plan.most_depth, depth);
    }
  }
}

void choose_rounds(const BenchIoOptions& options, BenchIoPlan& plan) {
  const unsigned few = options.quick ? 2 : 5;
  plan.main_rounds = options.windows > 0 ? options.windows : options.quick ? 4 : 100;
  plan.sweep_rounds = plan.sweep.size() > 1 ? few : 0;
  plan.mix_rounds = 4 * few;
  plan.many_rounds = 4 * few;
  plan.directory_rounds = plan.directories > 1 ? 2 * few : 0;
}

}  // namespace

Bytes BenchIoPlan::file_bytes() const {
  Bytes total = many.tile * many.count;
  for (const TileSet& set : sets) total += set.tile * set.count;
  return total;
}

Bytes BenchIoPlan::bytes_to_read() const {
  const std::uint64_t windows = sweep.size() * sweep_rounds + std::uint64_t{3} * main_rounds +
                                mix_rounds + std::uint64_t{2} * many_rounds +
                                std::uint64_t{directories} * directory_rounds;
  return window * windows;
}

Bytes BenchIoPlan::bytes_to_write() const { return file_bytes() + bytes_to_read(); }

BenchIoPlan make_bench_io_plan(const BenchIoOptions& options) {
  const std::vector<Bytes> tiles = choices(options.tiles, {1_MiB, 4_MiB, 16_MiB});
  const std::vector<unsigned> depths = choices(options.depths, {4U, 8U, 16U});
  BenchIoPlan plan{.window = options.quick ? 16_MiB : 64_MiB};
  check_directories(options.directories);
  plan.directories = static_cast<std::uint32_t>(options.directories.size());
  for (const Bytes tile : tiles) check_tile(tile, plan.window);
  for (const unsigned depth : depths) check_depth(depth);
  deal_bytes(options.bytes, tiles_that_fit(tiles, depths, plan.window), plan);
  pair_up(depths, plan);
  choose_rounds(options, plan);
  return plan;
}

}  // namespace strata::tool
