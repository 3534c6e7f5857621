// What a GPU and its link do for Strata: rates of copies one way and both, how well copies and
// kernels overlap, and the rates of the update's kernels. One line per figure, medians of several
// rounds: "name<TAB>value<TAB>unit".
//
//   gpu_bench [MIB]     size of a copy, default 256
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "support/pinned.hpp"

namespace strata::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 9;
constexpr double kGiga = 1e9;

class Bench {
 public:
  explicit Bench(Bytes size)
      : size_(size),
        device_({.arena = 16 * size}),
        up_(device_.create_stream("up")),
        down_(device_.create_stream("down")),
        compute_(device_.create_stream("compute")),
        from_(device_, std::vector<std::byte>(size.value, std::byte{1})),
        to_(device_, std::vector<std::byte>(size.value)) {}

  void run() {
    tell("gpu", std::string(device_.name()));
    const double gigabytes = static_cast<double>(size_.value) / kGiga;
    const double h2d = seconds([&] { send(); });
    const double d2h = seconds([&] { fetch(); });
    const double both = seconds([&] {
      send();
      fetch();
    });
    tell("h2d", gigabytes / h2d, "GB/s");
    tell("d2h", gigabytes / d2h, "GB/s");
    tell("h2d beside d2h", gigabytes / both, "GB/s each way");

    // As many updates as take about as long as a copy.
    const double one = seconds([&] { update(1); });
    const int updates = std::max(1, static_cast<int>(h2d / one));
    const double computing = seconds([&] { update(updates); });
    const double overlapped = seconds([&] {
      send();
      update(updates);
    });
    tell("copy and compute together, of the longer", overlapped / std::max(h2d, computing), "x");

    const double elems = static_cast<double>(count());
    tell("AdamW, bf16 gradient and parameter", elems / one / kGiga, "G parameters/s");
    tell("the same, bytes of device memory", 28 * elems / one / kGiga, "GB/s");
    const double stats = seconds([&] { sum(); });
    tell("norm and flags of a bf16 gradient", 2 * elems / stats / kGiga, "GB/s");
    const double record = seconds([&] {
      for (int i = 0; i < 1000; ++i) static_cast<void>(device_.record(compute_));
    });
    tell("an event", record * 1e6 / 1000, "us");
    device_.close();
  }

 private:
  std::uint64_t count() const { return size_.value / 8; }
  std::byte* piece(std::uint64_t index) const {
    return const_cast<CudaDevice&>(device_).arena().data() + index * size_.value;
  }

  void send() { device_.copy(up_, piece(0), from_.data(), size_, CopyKind::host_to_device); }
  void fetch() { device_.copy(down_, to_.data(), piece(1), size_, CopyKind::device_to_host); }
  void update(int times) {
    const UpdateCoefficients coefficients{.step = 1e-4F};
    for (int i = 0; i < times; ++i) {
      device_.element_op(compute_, UpdateOp{.gradient = piece(2),
                                            .gradient_dtype = DType::bf16,
                                            .weights = piece(3),
                                            .moments = {piece(4), piece(5)},
                                            .param = piece(6),
                                            .param_dtype = DType::bf16,
                                            .count_elems = count(),
                                            .runs = {{0, count(), coefficients}}});
    }
  }
  void sum() {
    device_.element_op(compute_, GradientStatsOp{piece(2), DType::bf16, count(),
                                                 reinterpret_cast<double*>(piece(7)),
                                                 reinterpret_cast<std::uint32_t*>(piece(8))});
  }

  // The median time of `work`, enqueued and waited for.
  double seconds(const std::function<void()>& work) {
    std::vector<double> rounds;
    for (int i = 0; i <= kRounds; ++i) {
      const auto begin = Clock::now();
      work();
      for (const StreamId stream : {up_, down_, compute_}) {
        device_.synchronize(device_.record(stream));
      }
      if (i > 0) rounds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
  }

  static void tell(const std::string& what, double value, const std::string& unit) {
    fmt::print("{}\t{:.3g}\t{}\n", what, value, unit);
  }
  static void tell(const std::string& what, const std::string& value) {
    fmt::print("{}\t{}\t\n", what, value);
  }

  const Bytes size_;
  CudaDevice device_;
  const StreamId up_;
  const StreamId down_;
  const StreamId compute_;
  Pinned from_;
  Pinned to_;
};

}  // namespace
}  // namespace strata::test

int main(int argc, char** argv) try {
  const std::uint64_t mebibytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256;
  strata::test::Bench(strata::Bytes{std::max<std::uint64_t>(mebibytes, 1) << 20}).run();
} catch (const strata::Error& error) {
  fmt::print(stderr, "gpu_bench: {}\n", error.what());
  return 1;
}
