// The tensors that math on the CPU works on. Where the CPU can address device memory they are the
// session's own; on a GPU they are copies in host memory, brought over and back in stream order.
//
// Copies of one unit stand side by side; start_unit() lets the next unit's take their place.
// Ownership: borrows device and memory. Thread: the trainer's. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "strata/device.hpp"
#include "tensor_view.hpp"

namespace train_gpt {

class HostCopies {
 public:
  // With empty `weights` there are no copies.
  HostCopies(strata::Device& device, strata::StreamId stream, std::span<std::byte> weights,
             std::span<std::byte> gradients);

  void start_unit();

  // The same view, of data that the CPU may read in stream order.
  WeightView of(const WeightView& view);

  // The same gradient, zero and for the CPU to add to in stream order. `count_elems` as the tensor.
  GradView of(const GradView& view, std::uint64_t count_elems);

  // Brings the gradients since start_unit(), or the last deliver(), to the device.
  void deliver();

 private:
  struct Delivery {
    void* to;
    const std::byte* from;
    strata::Bytes size;
  };

  static std::byte* take(std::span<std::byte>& left, strata::Bytes size);

  strata::Device& device_;
  const strata::StreamId stream_;
  const std::span<std::byte> weights_;
  const std::span<std::byte> gradients_;
  std::span<std::byte> weights_left_;
  std::span<std::byte> gradients_left_;
  std::vector<Delivery> deliveries_;
};

}  // namespace train_gpt
