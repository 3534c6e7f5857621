#include "bench_io_phases.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.hpp"

namespace strata::tool {
namespace {

constexpr std::uint64_t kShuffleSeed = 1;

// Extents of one size in an order, how many of them a window moves, and how many of those at once.
struct Walk {
  std::vector<ExtentId> extents;
  std::uint64_t per_window = 0;
  unsigned depth = 0;

  // What the window of this round moves; the walk begins again at its end.
  ExtentId at(std::uint64_t round, std::uint64_t i) const {
    return extents[(round * per_window + i) % extents.size()];
  }
  std::vector<TileMove> moves(std::uint64_t round, bool write) const {
    std::vector<TileMove> result;
    for (std::uint64_t i = 0; i < per_window; ++i) result.push_back({at(round, i), write});
    return result;
  }
  // A read, a write, a read and so on.
  std::vector<TileMove> mixed_moves(std::uint64_t round) const {
    std::vector<TileMove> result;
    for (std::uint64_t i = 0; i < per_window; ++i) result.push_back({at(round, i), i % 2 == 1});
    return result;
  }
};

// By Fisher and Yates.
std::vector<ExtentId> shuffled(std::span<const ExtentId> extents) {
  std::vector<ExtentId> result(extents.begin(), extents.end());
  for (std::size_t i = result.size(); i > 1; --i) {
    std::swap(result[i - 1], result[rng::at(kShuffleSeed, i) % i]);
  }
  return result;
}

class Phases {
 public:
  Phases(const BenchIoOptions& options, const BenchIoPlan& plan, BenchIoRig& rig,
         const std::function<void()>& before_window)
      : options_(options), plan_(plan), rig_(rig), before_window_(before_window) {}

  BenchIoResults run();

 private:
  void write_everything();
  void write_once(const Walk& walk);
  void sweep();
  void compare_with_bare_loop();
  void mix_reads_and_writes();
  void visit_many_tensors();
  void visit_directories();
  void describe_rig();

  Walk walk(TileAndDepth pair) const;
  Walk best_walk() const { return walk(results_.best); }
  Walk many_walk() const;
  Walk walk_in_directory(std::uint32_t directory) const;

  void run_library(const Walk& walk, std::span<const TileMove> moves, bool verify, Series& series,
                   std::vector<double>* latencies_s = nullptr);
  void run_bare(const Walk& walk, std::span<const TileMove> moves, Series& series);
  void write_and_read(const Walk& walk, std::uint64_t round, ReadsAndWrites& results);

  const BenchIoOptions& options_;
  const BenchIoPlan& plan_;
  BenchIoRig& rig_;
  const std::function<void()>& before_window_;
  BenchIoResults results_;
};

BenchIoResults Phases::run() {
  write_everything();
  rig_.make_bare_loop();
  sweep();
  compare_with_bare_loop();
  mix_reads_and_writes();
  visit_many_tensors();
  visit_directories();
  describe_rig();
  return std::move(results_);
}

Walk Phases::walk(TileAndDepth pair) const {
  const auto set = rig_.set(pair.set);
  return {{set.begin(), set.end()}, plan_.tiles_of(plan_.sets[pair.set].tile), pair.depth};
}

Walk Phases::many_walk() const {
  const std::uint64_t per_window = plan_.tiles_of(plan_.many.tile);
  return {shuffled(rig_.many()), per_window,
          static_cast<unsigned>(std::min<std::uint64_t>(plan_.most_depth, per_window))};
}

Walk Phases::walk_in_directory(std::uint32_t directory) const {
  Walk result = best_walk();
  std::erase_if(result.extents,
                [&](ExtentId extent) { return rig_.directory_of(extent) != directory; });
  return result;
}

void Phases::run_library(const Walk& walk, std::span<const TileMove> moves, bool verify,
                         Series& series, std::vector<double>* latencies_s) {
  before_window_();
  const WindowTime time = rig_.run_library(moves, walk.depth, verify, latencies_s);
  series.add(plan_.window, time.seconds, time.cpu_seconds);
}

void Phases::run_bare(const Walk& walk, std::span<const TileMove> moves, Series& series) {
  if (!rig_.has_bare_loop()) return;
  before_window_();
  const WindowTime time = rig_.run_bare(moves, walk.depth);
  series.add(plan_.window, time.seconds, time.cpu_seconds);
}

void Phases::write_and_read(const Walk& walk, std::uint64_t round, ReadsAndWrites& results) {
  run_library(walk, walk.moves(round, true), false, results.write);
  run_library(walk, walk.moves(round, false), false, results.read);
}

// The first pass over the blocks of a new file is slower than all later ones.
void Phases::write_everything() {
  for (std::size_t set = 0; set < plan_.sets.size(); ++set) write_once(walk({set, 1}));
  write_once(many_walk());
}

void Phases::write_once(const Walk& walk) {
  const std::vector<ExtentId>& extents = walk.extents;
  for (std::size_t begin = 0; begin < extents.size(); begin += walk.per_window) {
    before_window_();
    std::vector<TileMove> moves;
    const std::size_t end = std::min(begin + walk.per_window, extents.size());
    for (std::size_t i = begin; i < end; ++i) moves.push_back({extents[i], true});
    rig_.run_library(moves, walk.depth, true);
  }
}

void Phases::sweep() {
  for (const TileAndDepth pair : plan_.sweep) results_.sweep.push_back({pair, {}});
  for (unsigned round = 0; round < plan_.sweep_rounds; ++round) {
    for (SweepResult& result : results_.sweep) {
      write_and_read(walk(result.pair), round, result.rates);
    }
  }
  const auto rate = [](const SweepResult& result) { return result.rates.combined_rate(); };
  results_.best = plan_.sweep_rounds == 0
                      ? plan_.sweep.front()
                      : std::ranges::max_element(results_.sweep, {}, rate)->pair;
}

// Without checksums beside the bare loop, which has none, the two in turn first; then the same
// windows with checksums. The verified write is the last of its round, since it makes the checksums
// that the verified read needs.
void Phases::compare_with_bare_loop() {
  const Walk walk = best_walk();
  const auto compare = [&](unsigned round, bool write, Series& library, Series& bare,
                           Series& verified, std::vector<double>& latencies_s) {
    const std::vector<TileMove> moves = walk.moves(round, write);
    const bool bare_first = round % 2 == 1;
    if (bare_first) run_bare(walk, moves, bare);
    run_library(walk, moves, false, library);
    if (!bare_first) run_bare(walk, moves, bare);
    run_library(walk, moves, true, verified, &latencies_s);
  };
  BenchIoResults& r = results_;
  for (unsigned round = 0; round < plan_.main_rounds; ++round) {
    compare(round, true, r.library.write, r.bare.write, r.verified.write, r.write_latency_s);
    compare(round, false, r.library.read, r.bare.read, r.verified.read, r.read_latency_s);
  }
}

void Phases::mix_reads_and_writes() {
  const Walk walk = best_walk();
  for (unsigned round = 0; round < plan_.mix_rounds; ++round) {
    const std::vector<TileMove> moves = walk.mixed_moves(round);
    run_library(walk, moves, false, results_.mix);
    run_bare(walk, moves, results_.bare_mix);
  }
}

void Phases::visit_many_tensors() {
  const Walk many = many_walk();
  const Walk sequential = best_walk();
  for (unsigned round = 0; round < plan_.many_rounds; ++round) {
    write_and_read(many, round, results_.many);
    write_and_read(sequential, round, results_.beside_many);
  }
}

void Phases::visit_directories() {
  if (plan_.directory_rounds == 0) return;
  results_.directories.resize(plan_.directories);
  for (unsigned round = 0; round < plan_.directory_rounds; ++round) {
    for (std::uint32_t i = 0; i < plan_.directories; ++i) {
      write_and_read(walk_in_directory(i), round, results_.directories[i]);
    }
  }
}

void Phases::describe_rig() {
  results_.io_name = rig_.io_name();
  results_.registered = rig_.uses_registered_memory();
  results_.page_size = rig_.page_size();
  results_.why_no_bare_loop = rig_.why_no_bare_loop();
  results_.bytes_written = rig_.bytes_written();
}

}  // namespace

BenchIoResults measure(const BenchIoOptions& options, const BenchIoPlan& plan, BenchIoRig& rig,
                       const std::function<void()>& before_window) {
  return Phases(options, plan, rig, before_window).run();
}

}  // namespace strata::tool
