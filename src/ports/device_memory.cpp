#include "ports/device_memory.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

#include "base/check.hpp"

namespace strata {

bool contains(std::span<const std::byte> memory, const void* data, Bytes size) {
  if (size == Bytes{0}) return true;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
  return begin >= start && size.value <= memory.size() &&
         begin - start <= memory.size() - size.value;
}

void require_in_arena(std::span<const std::byte> arena, std::string_view name, const void* data,
                      Bytes size, std::string_view what) {
  STRATA_ASSERT(contains(arena, data, size),
                fmt::format("{} ({} + {} bytes) lies outside the arena of '{}'", what, data,
                            size.value, name));
}

void RegisteredRanges::add(std::span<const std::byte> memory) {
  const auto next = ranges_.lower_bound(memory.data());
  const bool overlaps_next = next != ranges_.end() && next->first < memory.data() + memory.size();
  const bool overlaps_previous =
      next != ranges_.begin() && std::prev(next)->first + std::prev(next)->second > memory.data();
  STRATA_ASSERT(!overlaps_next && !overlaps_previous,
                fmt::format("host memory {} + {} bytes is registered already",
                            static_cast<const void*>(memory.data()), memory.size()));
  ranges_.emplace(memory.data(), memory.size());
}

void RegisteredRanges::remove(std::span<const std::byte> memory) {
  const auto found = ranges_.find(memory.data());
  STRATA_ASSERT(found != ranges_.end() && found->second == memory.size(),
                fmt::format("host memory {} + {} bytes was never registered",
                            static_cast<const void*>(memory.data()), memory.size()));
  ranges_.erase(found);
}

bool RegisteredRanges::contain(const void* data, Bytes size) const {
  const auto next = ranges_.upper_bound(static_cast<const std::byte*>(data));
  if (next == ranges_.begin()) return false;
  const auto& [start, length] = *std::prev(next);
  return contains({start, length}, data, size);
}

}  // namespace strata
