// Values attached to ranges of addresses. Ranges split where a caller's range begins or ends, and
// neighbours with equal values merge again, so that the map stays as small as what it says.
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace strata::test {

struct AddressRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// `Value` is copyable and equality comparable. Addresses that no range covers hold Value{}.
template <class Value>
class RangeMap {
 public:
  std::size_t size() const { return ranges_.size(); }

  // Calls visit(AddressRange, Value&) for consecutive pieces that together cover `range`.
  template <class Visit>
  void update(AddressRange range, Visit&& visit) {
    if (range.begin >= range.end) return;
    split(range.begin);
    split(range.end);
    fill_gaps(range);
    auto it = ranges_.find(range.begin);
    for (; it != ranges_.end() && it->first < range.end; ++it) {
      visit(AddressRange{it->first, it->second.end}, it->second.value);
    }
    merge(range);
  }

  // Calls visit(AddressRange, Value&) for every range.
  template <class Visit>
  void update_all(Visit&& visit) {
    for (auto& [begin, entry] : ranges_) visit(AddressRange{begin, entry.end}, entry.value);
    if (!ranges_.empty()) merge({ranges_.begin()->first, ranges_.rbegin()->second.end});
  }

  // Forgets ranges that hold Value{}.
  void drop_defaults() {
    std::erase_if(ranges_, [](const auto& item) { return item.second.value == Value{}; });
  }

 private:
  struct Entry {
    std::uintptr_t end = 0;
    Value value;
  };
  using Map = std::map<std::uintptr_t, Entry>;

  void split(std::uintptr_t at) {
    auto it = ranges_.lower_bound(at);
    if (it == ranges_.begin()) return;
    --it;
    if (it->first < at && at < it->second.end) {
      ranges_.emplace_hint(std::next(it), at, it->second);
      it->second.end = at;
    }
  }

  void fill_gaps(AddressRange range) {
    std::uintptr_t covered = range.begin;
    auto it = ranges_.lower_bound(range.begin);
    while (covered < range.end) {
      const bool at_end = it == ranges_.end() || it->first >= range.end;
      const std::uintptr_t next = at_end ? range.end : it->first;
      if (covered < next) ranges_.emplace_hint(it, covered, Entry{next, Value{}});
      if (at_end) return;
      covered = it->second.end;
      ++it;
    }
  }

  // Joins equal neighbours inside `range` and across its two borders.
  void merge(AddressRange range) {
    auto it = ranges_.lower_bound(range.begin);
    if (it != ranges_.begin()) --it;
    while (it != ranges_.end() && it->first <= range.end) {
      const auto next = std::next(it);
      if (next == ranges_.end()) return;
      if (it->second.end == next->first && it->second.value == next->second.value) {
        it->second.end = next->second.end;
        ranges_.erase(next);
      } else {
        it = next;
      }
    }
  }

  Map ranges_;
};

}  // namespace strata::test
