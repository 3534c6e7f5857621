#include "virtual/disk_model.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace strata {
namespace {

std::int64_t to_ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

}  // namespace

DiskModel::DiskModel(const DiskPace& pace) : pace_(pace) {
  STRATA_ASSERT(pace.read_bytes_per_second > 0 && pace.write_bytes_per_second > 0,
                "a disk needs rates above zero");
}

bool DiskModel::later(const Queued& a, const Queued& b) {
  return std::pair(a.request.priority, a.sequence) > std::pair(b.request.priority, b.sequence);
}

void DiskModel::submit(const IoRequest& request, std::int64_t now_ns) {
  Line& line = lines_[pace_.half_duplex || request.op == IoOp::read ? 0 : 1];
  line.queue.push_back({request, next_sequence_++, now_ns});
  std::push_heap(line.queue.begin(), line.queue.end(), later);
}

std::int64_t DiskModel::occupied_ns(const IoRequest& request) const {
  const auto bytes = static_cast<double>(request.size.value);
  switch (request.op) {
    case IoOp::read: return to_ns(bytes / pace_.read_bytes_per_second);
    case IoOp::write: return to_ns(bytes / pace_.write_bytes_per_second);
    case IoOp::flush: break;
  }
  return to_ns(pace_.flush_seconds +
               pace_.flush_seconds_per_byte * static_cast<double>(unflushed_.value));
}

std::optional<DiskModel::Service> DiskModel::start(std::int64_t now_ns) {
  const auto ready = std::ranges::find_if(
      lines_, [&](const Line& line) { return !line.queue.empty() && line.free_at_ns <= now_ns; });
  if (ready == lines_.end()) return std::nullopt;
  std::pop_heap(ready->queue.begin(), ready->queue.end(), later);
  const Queued next = ready->queue.back();
  ready->queue.pop_back();
  std::int64_t start_ns = std::max(ready->free_at_ns, next.submitted_ns);
  if (next.request.op == IoOp::flush) {
    for (const Line& line : lines_) start_ns = std::max(start_ns, line.free_at_ns);
  }
  const std::int64_t end_ns = start_ns + occupied_ns(next.request);
  occupied_sum_ns_ += end_ns - start_ns;
  ready->free_at_ns = end_ns;
  if (next.request.op == IoOp::flush) {
    for (Line& stopped : lines_) stopped.free_at_ns = end_ns;
    unflushed_ = Bytes{0};
  } else if (next.request.op == IoOp::write) {
    unflushed_ += next.request.size;
  }
  return Service{next.request, end_ns + to_ns(pace_.request_latency_seconds)};
}

std::optional<std::int64_t> DiskModel::next_start_ns() const {
  std::optional<std::int64_t> next;
  for (const Line& line : lines_) {
    if (!line.queue.empty()) next = std::min(next.value_or(line.free_at_ns), line.free_at_ns);
  }
  return next;
}

}  // namespace strata
