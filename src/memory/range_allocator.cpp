#include "memory/range_allocator.hpp"

#include <algorithm>
#include <iterator>

#include "base/check.hpp"
#include "memory/region.hpp"

namespace strata {

RangeAllocator::RangeAllocator(std::span<std::byte> range) {
  if (!range.empty()) holes_[range.data()] = range.size();
}

std::optional<std::span<std::byte>> RangeAllocator::allocate(Bytes size) {
  if (size > largest_hole()) return std::nullopt;
  const std::size_t rounded = round_up(size, kPieceAlign).value;
  const auto hole = std::ranges::find_if(holes_, [&](auto& h) { return h.second >= rounded; });
  if (hole == holes_.end()) return std::nullopt;
  const auto [start, length] = *hole;
  holes_.erase(hole);
  if (length > rounded) holes_[start + rounded] = length - rounded;
  return std::span(start, size.value);
}

void RangeAllocator::release(std::span<std::byte> piece) {
  std::byte* start = piece.data();
  std::size_t length = round_up(Bytes{piece.size()}, kPieceAlign).value;
  const auto next = holes_.lower_bound(start);
  STRATA_ASSERT(next == holes_.end() || start + length <= next->first, "released twice");
  if (next != holes_.end() && next->first == start + length) {
    length += next->second;
    holes_.erase(next);
  }
  const auto after = holes_.lower_bound(start);
  if (after != holes_.begin()) {
    const auto before = std::prev(after);
    STRATA_ASSERT(before->first + before->second <= start, "released twice");
    if (before->first + before->second == start) {
      before->second += length;
      return;
    }
  }
  holes_[start] = length;
}

Bytes RangeAllocator::largest_hole() const {
  std::size_t largest = 0;
  for (const auto& [start, length] : holes_) largest = std::max(largest, length);
  return Bytes{largest};
}

}  // namespace strata
