#include "support/order_checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace strata::test {
namespace {

AddressRange range_of(const void* data, std::uint64_t size_bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + size_bytes};
}

AddressRange range_of(std::span<const std::byte> memory) {
  return range_of(memory.data(), memory.size());
}

bool all_equal(AddressRange range, std::byte value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(range.begin);
  const std::size_t size = range.end - range.begin;
  // Equal to itself shifted by one byte: all bytes equal the first.
  return bytes[0] == value && std::memcmp(bytes, bytes + 1, size - 1) == 0;
}

void fill(std::span<std::byte> memory, std::byte value) {
  std::memset(memory.data(), std::to_integer<int>(value), memory.size());
}

}  // namespace

OrderChecker::OrderChecker(std::span<std::byte> arena, bool check_leases, Report report)
    : arena_(range_of(arena)), check_leases_(check_leases), report_(std::move(report)) {
  cells_.update(arena_, [&](AddressRange, Cell& cell) {
    cell.state = check_leases_ ? State::free : State::leased;
    cell.written = !check_leases_;
  });
}

void OrderChecker::add_stream(std::string_view name) {
  stream_names_.emplace_back(name);
  streams_.emplace_back();
}

void OrderChecker::op(StreamId stream, std::string_view kind, std::span<const Access> accesses) {
  VectorClock& now = streams_.at(stream.value);
  now.join(host_);
  const Touch touch{stream, now.tick(stream), kind};
  const std::string who = describe(touch);
  for (const bool writes : {false, true}) {
    for (const Access& access : accesses) {
      if (access.writes != writes) continue;
      check_access(now, who, access);
      cells_.update(range_of(access.data, access.size.value),
                    [&](AddressRange, Cell& cell) { apply(touch, writes, cell); });
    }
  }
  if (cells_.size() > forget_at_ranges_) forget_what_the_host_knows();
}

void OrderChecker::record(StreamId stream, Event event) {
  VectorClock& now = streams_.at(stream.value);
  now.join(host_);
  events_[{event.slot, event.generation}] = now;
  if (events_.size() > forget_at_events_) forget_what_the_host_knows();
}

void OrderChecker::wait(StreamId stream, Event event) {
  const auto found = events_.find({event.slot, event.generation});
  if (found != events_.end()) streams_.at(stream.value).join(found->second);
}

void OrderChecker::host_knows(Event event) {
  const auto found = events_.find({event.slot, event.generation});
  if (found == events_.end()) return;
  host_.join(found->second);
  events_.erase(found);
}

bool OrderChecker::is_known(Event event) const {
  const auto found = events_.find({event.slot, event.generation});
  return found == events_.end() || host_.covers(found->second);
}

void OrderChecker::host_access(std::string_view kind, const Access& access) {
  check_access(host_, fmt::format("{} by the host", kind), access);
}

void OrderChecker::lease(std::span<std::byte> memory) {
  if (!check_leases_ || memory.empty()) return;
  told_.clear();
  bool sound = true;
  cells_.update(range_of(memory), [&](AddressRange range, Cell& cell) {
    if (cell.state != State::free) {
      sound = false;
      report_once("lease", fmt::format("lease: {} {}", describe(range),
                                       cell.state == State::leased ? "is leased already"
                                                                   : "is not device memory"));
    } else if (!require_finished(cell, range, "lease") || !require_intact(cell, range)) {
      sound = false;
    }
    if (cell.state != State::host) cell.state = State::leased;
    cell.written = false;
  });
  // Bytes that something may still be writing are left to it.
  if (sound) fill(memory, kPoison);
}

void OrderChecker::release(std::span<std::byte> memory) {
  if (!check_leases_ || memory.empty()) return;
  told_.clear();
  bool sound = true;
  cells_.update(range_of(memory), [&](AddressRange range, Cell& cell) {
    if (cell.state != State::leased) {
      sound = false;
      report_once("release", fmt::format("release: {} is not leased", describe(range)));
    }
    if (!require_finished(cell, range, "release")) sound = false;
    if (cell.state != State::host) cell.state = State::free;
  });
  if (!sound) return;
  fill(memory, kCanary);
  cells_.update(range_of(memory), [](AddressRange, Cell& cell) { cell.free_fill = kCanary; });
}

void OrderChecker::finish() {
  told_.clear();
  cells_.update_all([&](AddressRange range, Cell& cell) {
    if (cell.state == State::free) require_intact(cell, range);
  });
}

void OrderChecker::check_access(const VectorClock& now, const std::string& who,
                                const Access& access) {
  told_.clear();
  cells_.update(range_of(access.data, access.size.value), [&](AddressRange range, Cell& cell) {
    check_state(cell, access, range, who);
    if (const Touch* other = find_unordered(now, cell, access.writes)) {
      report_once("race", fmt::format("race: {} {} {}, and nothing orders it after {}", who,
                                      access.writes ? "writes" : "reads", describe(range),
                                      describe(*other)));
    }
  });
}

void OrderChecker::check_state(const Cell& cell, const Access& access, AddressRange range,
                               const std::string& who) {
  if (cell.state == State::free) {
    report_once("unleased", fmt::format("unleased: {} {} {}, which nobody leases", who,
                                        access.writes ? "writes" : "reads", describe(range)));
  } else if (cell.state == State::leased && !access.writes && !cell.written) {
    report_once("unwritten", fmt::format("unwritten: {} reads {}, which nothing has written since "
                                         "it was leased",
                                         who, describe(range)));
  }
}

void OrderChecker::apply(const Touch& touch, bool writes, Cell& cell) {
  if (writes) {
    cell.last_write = touch;
    cell.reads.clear();
    cell.written = true;
    return;
  }
  const auto same = std::find_if(cell.reads.begin(), cell.reads.end(),
                                 [&](const Touch& read) { return read.stream == touch.stream; });
  if (same == cell.reads.end()) {
    cell.reads.push_back(touch);
  } else {
    *same = touch;
  }
}

const OrderChecker::Touch* OrderChecker::find_unordered(const VectorClock& now, const Cell& cell,
                                                        bool writes) {
  const auto unordered = [&](const Touch& touch) { return touch.count > now.at(touch.stream); };
  if (unordered(cell.last_write)) return &cell.last_write;
  if (!writes) return nullptr;
  const auto read = std::find_if(cell.reads.begin(), cell.reads.end(), unordered);
  return read == cell.reads.end() ? nullptr : &*read;
}

bool OrderChecker::require_finished(const Cell& cell, AddressRange range, std::string_view what) {
  const Touch* unfinished = find_unordered(host_, cell, true);
  if (unfinished == nullptr) return true;
  report_once("reuse", fmt::format("reuse: {} of {}, and the host does not know that {} has "
                                   "finished",
                                   what, describe(range), describe(*unfinished)));
  return false;
}

bool OrderChecker::require_intact(const Cell& cell, AddressRange range) {
  if (all_equal(range, cell.free_fill)) return true;
  report_once("canary", fmt::format("canary: something wrote into {} while nobody leased it",
                                    describe(range)));
  return false;
}

void OrderChecker::report_once(std::string_view kind, std::string message) {
  if (std::find(told_.begin(), told_.end(), kind) != told_.end()) return;
  told_.push_back(kind);
  report_(std::move(message));
}

// Whatever comes later is ordered after what the host knows, so nothing is lost.
void OrderChecker::forget_what_the_host_knows() {
  const auto known = [&](const Touch& touch) { return touch.count <= host_.at(touch.stream); };
  cells_.update_all([&](AddressRange, Cell& cell) {
    if (known(cell.last_write)) cell.last_write = Touch{};
    std::erase_if(cell.reads, known);
    // Host memory has no state but its touches.
    if (cell.state == State::host && cell.last_write == Touch{}) cell.written = false;
  });
  cells_.drop_defaults();
  std::erase_if(events_, [&](const auto& item) { return host_.covers(item.second); });
  forget_at_ranges_ = std::max<std::size_t>(1024, 2 * cells_.size());
  forget_at_events_ = std::max<std::size_t>(1024, 2 * events_.size());
}

std::string OrderChecker::describe(const Touch& touch) const {
  return fmt::format("{} #{} on '{}'", touch.kind, touch.count, stream_names_[touch.stream.value]);
}

std::string OrderChecker::describe(AddressRange range) const {
  if (range.begin >= arena_.begin && range.end <= arena_.end) {
    return fmt::format("arena[{:#x}, {:#x})", range.begin - arena_.begin, range.end - arena_.begin);
  }
  return fmt::format("host memory [{:#x}, {:#x})", range.begin, range.end);
}

}  // namespace strata::test
