#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "bar_chart.hpp"
#include "bench_io_report.hpp"
#include "strata/bytes.hpp"

namespace strata::tool {

namespace {
constexpr std::size_t kColumns = 80;
}  // namespace

std::string wrapped(std::string_view text) {
  std::string lines;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (column > 0) {
      const bool fits = column + 1 + word.size() <= kColumns;
      lines += fits ? " " : "\n  ";
      column = fits ? column + 1 : 2;
    }
    lines += word;
    column += word.size();
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return lines + "\n";
}

namespace {

constexpr double kRoughRate = 2e9;  // of a disk, to tell about how long it takes

double in_gb(double bytes) { return bytes / 1e9; }

std::string sweep_text(const BenchIoPlan& plan, const BenchIoResults& results) {
  if (plan.sweep_rounds == 0) return {};
  std::string text = "Sweep, GB/s\n     tile  depth    read   write\n";
  for (const SweepResult& result : results.sweep) {
    const bool best =
        result.pair.set == results.best.set && result.pair.depth == results.best.depth;
    text += fmt::format("{:>9}  {:>5}  {:>6.2f}  {:>6.2f}{}\n",
                        format_bytes(plan.sets[result.pair.set].tile), result.pair.depth,
                        in_gb(result.rates.read.rate()), in_gb(result.rates.write.rate()),
                        best ? "  <- used below" : "");
  }
  return text + "\n";
}

// Four columns: a label, two series and their ratio.
std::string heading(const std::string& label, const char* series, const char* other) {
  return fmt::format("{:<20}  {:>8}  {:>8}  {:>6}  95 % of it\n", label, series, other, "ratio");
}

std::string row(const char* label, const Series& series, const Series& other) {
  const std::string begin = fmt::format("{:<20}  {:>8.2f}", label, in_gb(series.rate()));
  if (other.empty()) return begin + "\n";
  const Ratio ratio = ratio_of(series, other);
  return fmt::format("{}  {:>8.2f}  {:>6.3f}  [{:.3f}, {:.3f}]\n", begin, in_gb(other.rate()),
                     ratio.value, ratio.interval.low, ratio.interval.high);
}

std::string rates_text(const BenchIoPlan& plan, const BenchIoResults& results) {
  const std::string tensors =
      fmt::format("{} x {}, GB/s", plan.many.count, format_bytes(plan.many.tile));
  return heading("GB/s", "Strata", "bare") + row("read", results.library.read, results.bare.read) +
         row("write", results.library.write, results.bare.write) +
         row("read, verified", results.verified.read, results.bare.read) +
         row("write, checksums", results.verified.write, results.bare.write) +
         row("half and half", results.mix, results.bare_mix) + "\n" +
         heading(tensors, "shuffled", "in order") +
         row("read", results.many.read, results.beside_many.read) +
         row("write", results.many.write, results.beside_many.write) + "\n";
}

std::string latency_text(const std::string& label, const std::vector<double>& seconds) {
  return fmt::format("{} {:.1f} ms, 99 % {:.1f} ms", label, 1e3 * percentile(seconds, 0.5),
                     1e3 * percentile(seconds, 0.99));
}

std::string costs_text(const BenchIoResults& results) {
  std::string text =
      fmt::format("A verified tile: {}; {}\n", latency_text("read", results.read_latency_s),
                  latency_text("write", results.write_latency_s));
  text += fmt::format("CPU s/GiB: {:.3f} with checksums, {:.3f} without",
                      results.verified.cpu_s_per_gib(), results.library.cpu_s_per_gib());
  if (!results.bare.read.empty()) {
    text += fmt::format(", {:.3f} in the bare loop", results.bare.cpu_s_per_gib());
  }
  return text + "\n";
}

std::string chart(const BenchIoResults& results) {
  std::vector<Bar> bars;
  const auto add = [&](const char* label, const Series& series) {
    if (!series.empty()) bars.push_back({label, in_gb(series.rate())});
  };
  add("read", results.library.read);
  add("  verified", results.verified.read);
  add("  bare", results.bare.read);
  add("write", results.library.write);
  add("  checksums", results.verified.write);
  add("  bare", results.bare.write);
  add("mix", results.mix);
  add("  bare", results.bare_mix);
  add("many, read", results.many.read);
  add("many, write", results.many.write);
  return draw_bars(bars, "GB/s", 2, kColumns);
}

std::string directories_text(const BenchIoOptions& options, const BenchIoResults& results) {
  if (results.directories.empty()) return {};
  std::string text = "\nEach directory alone, GB/s\n  read   write\n";
  for (std::size_t i = 0; i < results.directories.size(); ++i) {
    const ReadsAndWrites& rates = results.directories[i];
    text += fmt::format("{:>6.2f}  {:>6.2f}  {}\n", in_gb(rates.read.rate()),
                        in_gb(rates.write.rate()), options.directories[i]);
  }
  return text + fmt::format("For nvme: \"weights\": [{}]\n", fmt::join(weights_of(results), ", "));
}

std::string ratio_text(const Ratio& ratio) {
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", ratio.value, ratio.interval.low,
                     ratio.interval.high);
}

std::string summary_text(const BenchIoResults& results) {
  if (results.bare.read.empty()) {
    return wrapped(fmt::format("No bare loop to compare with: {}", results.why_no_bare_loop));
  }
  const auto ratios = [&](const char* label, const ReadsAndWrites& rates) {
    return fmt::format("{}: read {}, write {}\n", label,
                       ratio_text(ratio_of(rates.read, results.bare.read)),
                       ratio_text(ratio_of(rates.write, results.bare.write)));
  };
  return ratios("Beside bare", results.library) + ratios("  verified ", results.verified);
}

}  // namespace

std::string bench_io_announcement(const BenchIoOptions& options, const BenchIoPlan& plan) {
  const Bytes moved = plan.bytes_to_write() + plan.bytes_to_read();
  return fmt::format(
      "Writes {}, to files of {} in all that it deletes at the end:\n  {}\n"
      "At 2 GB/s that takes about {:.0f} s.\n\n",
      format_bytes(plan.bytes_to_write()), format_bytes(plan.file_bytes()),
      fmt::join(options.directories, "\n  "), static_cast<double>(moved.value) / kRoughRate);
}

std::string bench_io_text(const BenchIoOptions& options, const BenchIoPlan& plan,
                          const BenchIoResults& results) {
  return fmt::format("{}, {}memory on {} pages; {} windows of {}\n\n", results.io_name,
                     results.registered ? "registered " : "", format_bytes(results.page_size),
                     plan.main_rounds, format_bytes(plan.window)) +
         sweep_text(plan, results) + rates_text(plan, results) + costs_text(results) + "\n" +
         chart(results) + directories_text(options, results) + "\n" + summary_text(results);
}

}  // namespace strata::tool
