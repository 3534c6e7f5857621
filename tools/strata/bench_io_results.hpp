// What `strata bench io` has measured. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench_io_plan.hpp"
#include "statistics.hpp"
#include "strata/types.hpp"

namespace strata::tool {

// The windows of one kind, in the order in which they ran.
struct Series {
  std::vector<double> bytes_per_s;
  double cpu_seconds = 0;  // together
  Bytes moved;

  void add(Bytes size, double seconds, double cpu) {
    bytes_per_s.push_back(static_cast<double>(size.value) / seconds);
    cpu_seconds += cpu;
    moved += size;
  }
  bool empty() const { return bytes_per_s.empty(); }
  // Pre of these: not empty.
  double rate() const { return median(bytes_per_s); }
  double cpu_s_per_gib() const {
    return cpu_seconds * static_cast<double>((1_GiB).value) / static_cast<double>(moved.value);
  }
};

struct ReadsAndWrites {
  Series read;
  Series write;

  // One byte read and one written take 1/R + 1/W.
  double combined_rate() const { return 2 / (1 / read.rate() + 1 / write.rate()); }
  double cpu_s_per_gib() const { return (read.cpu_s_per_gib() + write.cpu_s_per_gib()) / 2; }
};

struct SweepResult {
  TileAndDepth pair;
  ReadsAndWrites rates;
};

struct BenchIoResults {
  TileAndDepth best;
  std::vector<SweepResult> sweep;
  ReadsAndWrites library;               // without checksums, as all others but `verified`
  ReadsAndWrites verified;              // with checksums
  ReadsAndWrites bare;                  // no windows: there was no bare loop
  std::vector<double> read_latency_s;   // of tiles, verified
  std::vector<double> write_latency_s;  // of tiles, with checksums
  Series mix;
  Series bare_mix;
  ReadsAndWrites many;
  ReadsAndWrites beside_many;               // the sequential windows that alternated with them
  std::vector<ReadsAndWrites> directories;  // each alone; empty for a single one

  std::string io_name;
  bool registered = false;
  Bytes page_size;
  std::string why_no_bare_loop;  // empty: there was one
  Bytes bytes_written;
};

// Medians of one series over those of another that ran beside it.
struct Ratio {
  double value = 0;
  Interval interval;  // 95 %
};
// Pre: as many windows of each, at least one.
Ratio ratio_of(const Series& series, const Series& other);

// Shares of the directories as fast as they are, the fastest 1, to two digits.
std::vector<double> weights_of(const BenchIoResults& results);

}  // namespace strata::tool
