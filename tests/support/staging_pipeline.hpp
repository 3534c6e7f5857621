// A correct program for a device under test, shaped like the engine's: tiles come up through a ring
// of staging slots, are computed on and go down again, on three streams. Leaving out any one of
// its waits is a defect.
// Thread: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "support/adversarial_device.hpp"

namespace strata::test {

class StagingPipeline {
 public:
  static constexpr int kTiles = 6;
  static constexpr int kSlots = 2;
  static constexpr int kWaits = 2 * kTiles + (kTiles - kSlots);
  static constexpr std::size_t kElems = 64;
  static constexpr Bytes kSize{kElems * sizeof(float)};

  explicit StagingPipeline(AdversarialDevice& device, int left_out = -1)
      : device_(device), left_out_(left_out) {
    for (int slot = 0; slot < kSlots; ++slot) device_.note_lease(memory(slot));
  }

  // Declares what the computation touches, or leaves it to the data to show a defect.
  void run(bool declared) {
    for (int tile = 0; tile < kTiles; ++tile) step(tile, declared);
    for (const StreamId stream : {up_, compute_, down_}) {
      device_.synchronize(device_.record(stream));
    }
    for (int slot = 0; slot < kSlots; ++slot) device_.note_release(memory(slot));
  }

  bool result_is_right() const {
    for (int tile = 0; tile < kTiles; ++tile) {
      for (const float value : out_[static_cast<std::size_t>(tile)]) {
        if (value != static_cast<float>(tile) + 1) return false;
      }
    }
    return true;
  }

 private:
  using Tile = std::array<float, kElems>;

  std::span<std::byte> memory(int slot) {
    return device_.arena().subspan(static_cast<std::size_t>(slot) * 4096, kSize.value);
  }

  void wait(StreamId stream, Event event) {
    if (waits_++ != left_out_) device_.wait(stream, event);
  }

  void step(int tile, bool declared) {
    const auto index = static_cast<std::size_t>(tile);
    const auto slot = memory(tile % kSlots);
    in_[index].fill(static_cast<float>(tile));
    if (tile >= kSlots) wait(up_, drained_[index - kSlots]);
    device_.copy(up_, slot.data(), in_[index].data(), kSize, CopyKind::host_to_device);
    wait(compute_, device_.record(up_));
    const Access accesses[] = {{slot.data(), kSize, false}, {slot.data(), kSize, true}};
    device_.launch(
        compute_,
        [slot] {
          auto* const values = reinterpret_cast<float*>(slot.data());
          for (std::size_t i = 0; i < kElems; ++i) values[i] += 1;
        },
        declared ? std::span<const Access>(accesses) : std::span<const Access>());
    wait(down_, device_.record(compute_));
    device_.copy(down_, out_[index].data(), slot.data(), kSize, CopyKind::device_to_host);
    drained_[index] = device_.record(down_);
  }

  AdversarialDevice& device_;
  const int left_out_;
  int waits_ = 0;
  StreamId up_ = device_.create_stream("up");
  StreamId compute_ = device_.create_stream("compute");
  StreamId down_ = device_.create_stream("down");
  std::array<Tile, kTiles> in_{};
  std::array<Tile, kTiles> out_{};
  std::array<Event, kTiles> drained_{};
};

}  // namespace strata::test
