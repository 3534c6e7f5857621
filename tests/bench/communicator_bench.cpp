// How fast payload travels between the ranks of one host, beside MPI's own non-blocking
// collectives on the same buffers, in alternation:
//   mpirun -n 2 --bind-to none communicator_bench [MiB of buffer] [repeats] [KiB of window]
// Prints medians over the repeats: bytes of the whole buffer per second of the slowest rank. The
// other side of the comparison is polled with the same back-off, as an engine thread would poll it.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/element.hpp"
#include "cpu/cpu_device.hpp"
#include "mpi/backoff.hpp"
#include "mpi/mpi_communicator.hpp"

namespace strata {
namespace {

using Seconds = std::chrono::duration<double>;

void require(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  fmt::print(stderr, "{} failed with code {}\n", call, result);
  std::exit(1);
}

void finish(MPI_Request& request) {
  mpi::Backoff backoff;
  for (int done = 0; done == 0; backoff.pause()) {
    require(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  }
}

void sum_bf16(void* in, void* in_out, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const element::Bf16*>(in);
  auto* b = static_cast<element::Bf16*>(in_out);
  for (int i = 0; i < *count; ++i) {
    b[i] = element::from_float<element::Bf16>(element::to_float(a[i]) + element::to_float(b[i]));
  }
}

double slowest(Seconds mine) {
  double seconds = mine.count();
  require(MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD),
          "MPI_Allreduce");
  return seconds;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Contender {
  std::string name;
  std::function<void()> run;  // returns when the collective is done on this rank
  std::vector<double> seconds = {};
};

// The contenders take turns, so that drift of the machine meets all of them.
void race(std::vector<Contender>& contenders, int repeats) {
  for (int i = -1; i < repeats; ++i) {
    for (Contender& contender : contenders) {
      require(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
      const auto start = std::chrono::steady_clock::now();
      contender.run();
      const double seconds = slowest(std::chrono::steady_clock::now() - start);
      if (i >= 0) contender.seconds.push_back(seconds);  // the first round warms up
    }
  }
}

class Bench {
 public:
  Bench(Bytes buffer, Bytes window)
      : windows_(create_mpi_communicator({.window = window})),
        messages_(create_mpi_communicator({.shared_memory = false, .window = window})),
        device_({.arena = buffer + 1_MiB}),
        stream_(device_.create_stream("collectives")),
        shard_elems_(buffer.value / 2 / windows_->size()) {
    windows_->attach(device_);
    messages_->attach(device_);
    require(MPI_Type_contiguous(2, MPI_BYTE, &bf16_), "MPI_Type_contiguous");
    require(MPI_Type_commit(&bf16_), "MPI_Type_commit");
    require(MPI_Op_create(sum_bf16, 1, &sum_), "MPI_Op_create");
    std::memset(device_.arena().data(), 0, buffer.value);
  }

  ~Bench() {
    MPI_Op_free(&sum_);
    MPI_Type_free(&bf16_);
  }

  std::uint32_t size() const { return windows_->size(); }
  bool prints() const { return windows_->rank() == Rank{0}; }
  double buffer_bytes() const { return 2.0 * static_cast<double>(shard_elems_) * size(); }

  std::vector<Contender> gathers() {
    return {{"windows", [this] { gather(*windows_); }},
            {"messages", [this] { gather(*messages_); }},
            {"MPI_Iallgather", [this] { mpi_gather(); }}};
  }

  std::vector<Contender> reductions() {
    return {{"windows", [this] { reduce(*windows_); }},
            {"messages", [this] { reduce(*messages_); }},
            {"MPI_Ireduce_scatter_block", [this] { mpi_reduce(); }}};
  }

 private:
  void* data() { return device_.arena().data(); }
  ShardedBuffer buffer() { return {data(), shard_elems_, DType::bf16}; }
  void wait() { device_.synchronize(device_.record(stream_)); }

  void gather(Communicator& communicator) {
    const ShardedBuffer all = buffer();
    communicator.all_gather(stream_, {&all, 1});
    wait();
  }

  void reduce(Communicator& communicator) {
    const ShardedBuffer all = buffer();
    communicator.reduce_scatter(stream_, {&all, 1});
    wait();
  }

  void mpi_gather() {
    MPI_Request request = MPI_REQUEST_NULL;
    require(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data(),
                           static_cast<int>(shard_elems_), bf16_, MPI_COMM_WORLD, &request),
            "MPI_Iallgather");
    finish(request);
  }

  void mpi_reduce() {
    MPI_Request request = MPI_REQUEST_NULL;
    require(MPI_Ireduce_scatter_block(MPI_IN_PLACE, data(), static_cast<int>(shard_elems_), bf16_,
                                      sum_, MPI_COMM_WORLD, &request),
            "MPI_Ireduce_scatter_block");
    finish(request);
  }

  std::unique_ptr<Communicator> windows_;
  std::unique_ptr<Communicator> messages_;
  CpuDevice device_;
  StreamId stream_;
  std::uint64_t shard_elems_;
  MPI_Datatype bf16_ = MPI_DATATYPE_NULL;
  MPI_Op sum_ = MPI_OP_NULL;
};

void print(const char* title, const Bench& bench, const std::vector<Contender>& contenders) {
  if (!bench.prints()) return;
  const double base = median(contenders.back().seconds);
  for (const Contender& contender : contenders) {
    const double seconds = median(contender.seconds);
    fmt::print("{:<16} {:<26} {:6.2f} GB/s  {:5.2f} x MPI's own\n", title, contender.name,
               bench.buffer_bytes() / seconds / 1e9, base / seconds);
  }
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  int level = 0;
  strata::require(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
  const std::uint64_t mebibytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 16;
  const int repeats = argc > 2 ? static_cast<int>(std::strtol(argv[2], nullptr, 10)) : 21;
  const std::uint64_t kibibytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 4096;
  if (mebibytes == 0 || repeats <= 0) return 2;
  {
    strata::Bench bench(strata::Bytes{mebibytes << 20}, strata::Bytes{kibibytes << 10});
    auto gathers = bench.gathers();
    strata::race(gathers, repeats);
    strata::print("all-gather", bench, gathers);
    auto reductions = bench.reductions();
    strata::race(reductions, repeats);
    strata::print("reduce-scatter", bench, reductions);
  }
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
