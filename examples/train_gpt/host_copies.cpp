#include "host_copies.hpp"

#include <cstring>

namespace train_gpt {

using strata::Bytes;
using strata::CopyKind;

HostCopies::HostCopies(strata::Device& device, strata::StreamId stream,
                       std::span<std::byte> weights, std::span<std::byte> gradients)
    : device_(device), stream_(stream), weights_(weights), gradients_(gradients) {
  start_unit();
}

void HostCopies::start_unit() {
  weights_left_ = weights_;
  gradients_left_ = gradients_;
}

std::byte* HostCopies::take(std::span<std::byte>& left, Bytes size) {
  std::byte* const taken = left.data();
  left = left.subspan(size.value);
  return taken;
}

WeightView HostCopies::of(const WeightView& view) {
  if (weights_.empty()) return view;
  const Bytes size = size_of(view.dtype) * (view.rows * view.cols);
  std::byte* const copy = take(weights_left_, size);
  device_.copy(stream_, copy, view.data, size, CopyKind::device_to_host);
  return {copy, view.dtype, view.rows, view.cols};
}

GradView HostCopies::of(const GradView& view, std::uint64_t count_elems) {
  if (weights_.empty() || view.data == nullptr) return view;
  const Bytes size = size_of(view.dtype) * count_elems;
  std::byte* const copy = take(gradients_left_, size);
  const strata::Access access{copy, size, true};
  device_.launch(stream_, [copy, size] { std::memset(copy, 0, size.value); }, {&access, 1});
  deliveries_.push_back({view.data, copy, size});
  return {copy, view.dtype};
}

void HostCopies::deliver() {
  for (const Delivery& delivery : deliveries_) {
    device_.copy(stream_, delivery.to, delivery.from, delivery.size, CopyKind::host_to_device);
  }
  deliveries_.clear();
  gradients_left_ = gradients_;
}

}  // namespace train_gpt
