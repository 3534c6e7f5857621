// Host bytes that a device may copy from and to, for as long as this lives.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "strata/device.hpp"

namespace strata::test {

class Pinned {
 public:
  Pinned(Device& device, std::vector<std::byte> bytes) : device_(device), bytes_(std::move(bytes)) {
    if (!bytes_.empty()) device_.register_host(bytes_);
  }
  // Pre: no work on the device uses the bytes any more.
  ~Pinned() {
    if (!bytes_.empty()) device_.unregister_host(bytes_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::byte* data() { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  // The bytes as they are, for an owner who goes on without pinning them.
  std::vector<std::byte> copy() const { return bytes_; }

 private:
  Device& device_;
  std::vector<std::byte> bytes_;
};

}  // namespace strata::test
