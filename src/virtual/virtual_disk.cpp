#include "virtual/virtual_disk.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace strata {

VirtualDisk::VirtualDisk(VirtualMachine& machine, const std::vector<DiskPace>& paces)
    : machine_(machine) {
  STRATA_ASSERT(!paces.empty(), "no disks");
  for (const DiskPace& pace : paces) disks_.push_back({DiskModel(pace)});
}

FileId VirtualDisk::open(const FileSpec&) { return FileId{files_++}; }

void VirtualDisk::submit(std::span<const IoRequest> requests) {
  const std::int64_t now_ns = machine_.now_ns();
  tally_.submitted(requests.size(), now_ns);
  for (const IoRequest& request : requests) {
    disks_[request.file.value % disks_.size()].model.submit(request, now_ns);
  }
  for (std::size_t disk = 0; disk < disks_.size(); ++disk) start(disk);
}

// Takes what can be taken now, and looks again when the disk is free.
void VirtualDisk::start(std::size_t index) {
  Disk& disk = disks_[index];
  const std::int64_t now_ns = machine_.now_ns();
  while (const auto service = disk.model.start(now_ns)) {
    const std::uint64_t tag = service->request.tag;
    const IoOp op = service->request.op;
    const auto size = static_cast<std::int64_t>(service->request.size.value);
    machine_.call_at(service->done_ns, [this, tag, op, size] {
      tally_.completed(op, size, machine_.now_ns());
      finished_.push_back({tag, size});
    });
  }
  const auto next = disk.model.next_start_ns();
  if (!next || disk.next_look_ns == *next) return;
  disk.next_look_ns = *next;
  machine_.call_at(*next, [this, index] {
    disks_[index].next_look_ns = -1;
    start(index);
  });
}

std::size_t VirtualDisk::poll(std::span<IoResult> results) {
  const std::size_t count = std::min(results.size(), finished_.size());
  const auto end = finished_.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(finished_.begin(), end, results.begin());
  finished_.erase(finished_.begin(), end);
  return count;
}

double VirtualDisk::occupied_seconds() const {
  double sum = 0;
  for (const Disk& disk : disks_) sum += disk.model.occupied_seconds();
  return sum;
}

}  // namespace strata
