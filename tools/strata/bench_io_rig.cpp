#include "bench_io_rig.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/rng.hpp"
#include "session/factory.hpp"
#include "strata/clock.hpp"
#include "strata/error.hpp"

namespace strata::tool {
namespace {

constexpr Bytes kPatternPeriod = 256_KiB;
// A disk that hangs is waited for: files and memory cannot go before it has answered.
constexpr std::int64_t kNeverNs = std::int64_t{1} << 60;

Config config_of(const BenchIoOptions& options, const BenchIoPlan& plan) {
  Config config;
  config.nvme.backend = options.backend;
  config.nvme.queue_depth = plan.most_depth;
  config.nvme.write_depth = plan.most_depth;
  return config;
}

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Takes the time from its making to stop().
class Stopwatch {
 public:
  WindowTime stop() const {
    return {1e-9 * static_cast<double>(clock_.now_ns() - began_ns_), cpu_seconds() - cpu_began_};
  }

 private:
  SteadyClock clock_;
  std::int64_t began_ns_ = clock_.now_ns();
  double cpu_began_ = cpu_seconds();
};

// One window on the engine thread.
class Window {
 public:
  Window(TileIo& tile_io, std::span<const TileMove> moves, Bytes tile,
         std::vector<double>* latencies_s)
      : tile_io_(tile_io), moves_(moves), tile_(tile), latencies_s_(latencies_s) {}

  Task<WindowTime> run(std::byte* memory, unsigned depth) {
    const Stopwatch watch;
    for (unsigned lane = 0; lane < depth; ++lane) {
      lanes_.start(move_tiles(memory + lane * tile_.value));
    }
    co_await lanes_.join();
    co_return watch.stop();
  }

 private:
  // Moves one tile after the other through `slab`, until none is left or another lane has failed.
  Task<> move_tiles(std::byte* slab) {
    while (next_ < moves_.size() && !lanes_.failed()) {
      const TileMove move = moves_[next_++];
      const TileBuffer tile{.extent = move.extent, .data = slab};
      const std::int64_t began_ns = clock_.now_ns();
      if (move.write) {
        co_await tile_io_.write(tile);
      } else {
        co_await tile_io_.read(tile, IoPriority::stage);
      }
      if (latencies_s_ == nullptr) continue;
      latencies_s_->push_back(1e-9 * static_cast<double>(clock_.now_ns() - began_ns));
    }
  }

  TileIo& tile_io_;
  const std::span<const TileMove> moves_;
  const Bytes tile_;
  std::vector<double>* const latencies_s_;
  const SteadyClock clock_;
  std::size_t next_ = 0;
  TaskGroup lanes_;
};

}  // namespace

// Lines that adapters say on any thread, kept until someone prints them.
class BenchIoRig::Notices {
 public:
  void add(std::string_view line) {
    const std::scoped_lock lock(mutex_);
    lines_.emplace_back(line);
  }
  std::vector<std::string> take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(lines_, {});
  }

  static LogSink sink_of(const std::shared_ptr<Notices>& notices) {
    return [notices](LogLevel level, std::string_view line) {
      if (level == LogLevel::warning) notices->add(line);
    };
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

BenchIoRig::BenchIoRig(const BenchIoOptions& options, const BenchIoPlan& plan)
    : options_(options),
      plan_(plan),
      run_(fmt::format("bench-{}", ::getpid())),
      notices_(std::make_shared<Notices>()),
      region_(plan.window,
              {.what = "staging memory", .for_transfers = true, .log = Notices::sink_of(notices_)}),
      io_(make_block_io(config_of(options, plan), Notices::sink_of(notices_))),
      store_(*io_,
             {.directories = options.directories, .run = run_, .allow_tmpfs = options.allow_tmpfs}),
      device_(make_cpu_device(Bytes{})),
      workers_(options.workers),
      executor_(*device_, *io_, workers_, kNeverNs),
      verified_(executor_, store_, tile_io_options(true)),
      unverified_(executor_, store_, tile_io_options(false)) {
  fill_memory();
  io_->use_memory(region_.memory());
  for (const TileSet& set : plan.sets) sets_.push_back(add_extents(set));
  many_ = add_extents(plan.many);
  find_files();
  store_.open();
  engine_.emplace(executor_);
}

BenchIoRig::~BenchIoRig() {
  engine_.reset();
  bare_.reset();
  store_.close();
  io_->use_memory({});
  device_->close();
}

// A transfer that fails ends the run: time spent on trying again would be measured.
TileIoOptions BenchIoRig::tile_io_options(bool verify) const {
  return {.verify = verify,
          .retry_ns = 0,
          .log = Notices::sink_of(notices_),
          .name = [](ExtentId extent) {
            return TileName{"a tile", fmt::format("{}", extent.value), Rank{}};
          }};
}

std::vector<ExtentId> BenchIoRig::add_extents(const TileSet& set) {
  std::vector<ExtentId> extents;
  for (std::uint32_t i = 0; i < set.count; ++i) extents.push_back(store_.add(set.tile, streams_));
  ++streams_;
  return extents;
}

void BenchIoRig::find_files() {
  paths_.resize(options_.directories.size());
  const auto find = [&](ExtentId extent) {
    const std::string path = store_.path_of(store_.slot_of(extent));
    const auto holder = std::ranges::find_if(options_.directories, [&](const std::string& root) {
      return path.starts_with(fmt::format("{}/{}/", root, run_));
    });
    const auto index = static_cast<std::uint32_t>(holder - options_.directories.begin());
    paths_[index] = path;
    directory_of_.push_back(index);
  };
  for (const std::vector<ExtentId>& set : sets_) std::ranges::for_each(set, find);
  std::ranges::for_each(many_, find);
}

void BenchIoRig::fill_memory() {
  const std::span<std::byte> memory = region_.memory();
  for (std::size_t at = 0; at < kPatternPeriod.value; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = rng::at(0, at);
    std::memcpy(memory.data() + at, &word, sizeof word);
  }
  for (std::size_t at = kPatternPeriod.value; at < memory.size(); at += kPatternPeriod.value) {
    std::memcpy(memory.data() + at, memory.data(), kPatternPeriod.value);
  }
}

WindowTime BenchIoRig::run_library(std::span<const TileMove> moves, unsigned depth, bool verify,
                                   std::vector<double>* latencies_s) {
  if (latencies_s != nullptr) latencies_s->reserve(latencies_s->size() + moves.size());
  Window window(verify ? verified_ : unverified_, moves, store_.size(moves.front().extent),
                latencies_s);
  return executor_.run_blocking(window.run(region_.memory().data(), depth));
}

void BenchIoRig::make_bare_loop() {
  try {
    bare_ = tool::make_bare_loop({.paths = paths_,
                                  .memory = region_.memory(),
                                  .depth = plan_.most_depth,
                                  .register_memory = uses_registered_memory()});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_supported) throw;
    why_no_bare_loop_ = error.what();
  }
}

WindowTime BenchIoRig::run_bare(std::span<const TileMove> moves, unsigned depth) {
  const Bytes tile = store_.size(moves.front().extent);
  std::vector<BareTransfer> transfers;
  for (const TileMove& move : moves) {
    const ExtentStore::SlotIndex slot = store_.slot_of(move.extent);
    transfers.push_back({directory_of(move.extent), store_.offset_of(slot), move.write});
    if (move.write) bare_written_ += tile;
  }
  const Stopwatch watch;
  bare_->run(transfers, tile, depth);
  return watch.stop();
}

std::vector<std::string> BenchIoRig::take_notices() { return notices_->take(); }

}  // namespace strata::tool
