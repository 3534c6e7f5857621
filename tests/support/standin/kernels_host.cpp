// The kernels of the CUDA device by their bodies on the host, thread after thread: what
// src/cuda/kernels.cu is for a GPU.
#include "cuda/kernels.hpp"

#include <array>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/element_bodies.hpp"
#include "ports/element_accesses.hpp"
#include "support/standin/standin.hpp"

namespace strata::cuda {
namespace {

using test::standin::host_view;

AccumulateOp on_host(AccumulateOp op) {
  op.accumulator = host_view(op.accumulator);
  op.gradient = host_view(op.gradient);
  if (op.block_sums == nullptr) return op;
  op.block_sums = host_view(op.block_sums);
  op.nonfinite = host_view(op.nonfinite);
  return op;
}

ConvertOp on_host(ConvertOp op) {
  op.to = host_view(op.to);
  op.from = host_view(op.from);
  return op;
}

UpdateOp on_host(UpdateOp op) {
  op.gradient = host_view(op.gradient);
  op.weights = host_view(op.weights);
  for (std::size_t k = 0; k < moments_of(op.rule); ++k) op.moments[k] = host_view(op.moments[k]);
  if (op.param != nullptr) op.param = host_view(op.param);
  return op;
}

GradientStatsOp on_host(GradientStatsOp op) {
  op.gradient = host_view(op.gradient);
  op.block_sums = host_view(op.block_sums);
  op.nonfinite = host_view(op.nonfinite);
  return op;
}

void run(const GradientStatsOp& op) {
  element::with_block_sums(op, [](const auto& body, std::uint64_t blocks) {
    for (std::uint64_t block = 0; block < blocks; ++block) {
      std::array<double, element::kSumLanes> lanes{};
      std::uint32_t bad = 0;
      for (std::uint64_t lane = 0; lane < lanes.size(); ++lane) {
        lanes[lane] = body.lane(block, lane, &bad);
      }
      *body.nonfinite |= bad;
      body.finish(block, lanes.data());
    }
  });
}

template <class Op>
void run_bodies(const Op& op) {
  element::for_each_body(op, [](const auto& body, std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) body(i);
  });
}

void run(const AccumulateOp& op) {
  run_bodies(op);
  run(element::sums_of(op));
}
void run(const UpdateOp& op) { run_bodies(op); }
void run(const ConvertOp& op) { run_bodies(op); }

}  // namespace

cudaError_t load_kernels() { return cudaSuccess; }

cudaError_t launch_element_op(const ElementOp& op, cudaStream_t stream) {
  std::vector<Access> accesses;
  for_each_access(op, [&](const Access& access) { accesses.push_back(access); });
  return test::standin::launch(
      stream, accesses, [op] { std::visit([](const auto& one) { run(on_host(one)); }, op); });
}

}  // namespace strata::cuda
