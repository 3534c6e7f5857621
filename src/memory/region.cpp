#include "memory/region.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

#include "base/check.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"

namespace strata {

std::span<std::byte> Carver::carve(Bytes size) {
  const std::size_t rounded = round_up(size, kPieceAlign).value;
  STRATA_ASSERT(used_ + rounded <= memory_.size(),
                fmt::format("carving {} bytes of {} left", rounded, memory_.size() - used_));
  const auto piece = memory_.subspan(used_, size.value);
  used_ += rounded;
  return piece;
}

namespace {

constexpr Bytes kHugePage = 2_MiB;
constexpr Bytes kSmallPage = 4_KiB;
constexpr Bytes kAddressable{std::uint64_t{1} << 47};  // of x86-64 with four levels of pages

// Bytes of the mapping around `memory` that stand on transparent huge pages: proc(5), smaps.
Bytes on_huge_pages(std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  Bytes found;
  bool inside = false;
  while (std::getline(smaps, line)) {
    unsigned long from = 0;
    unsigned long to = 0;
    unsigned long kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      inside = from < begin + memory.size() && begin < to;
    } else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1) {
      found += Bytes{kib << 10};
    }
  }
  return found;
}

// Brings the pages in. Returns 0 or errno.
int touch(std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  while (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    break;  // a kernel before 5.14
  }
#endif
  for (std::size_t at = 0; at < memory.size(); at += kSmallPage.value) {
    static_cast<volatile std::byte&>(memory[at]) = std::byte{0};
  }
  return 0;
}

std::span<std::byte> map_anonymous(std::uint64_t length, int protection, std::string_view what) {
  void* address =
      ::mmap(nullptr, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(
        ErrorCode::budget_exceeded,
        fmt::format("cannot map {} of {}; lower budgets.host", format_bytes(Bytes{length}), what),
        {.errnum = errno});
  }
  return {static_cast<std::byte*>(address), length};
}

}  // namespace

HostRegion::HostRegion(Bytes size, const Options& options) {
  if (size.value == 0) return;
  if (size > kAddressable) {
    throw Error(
        ErrorCode::budget_exceeded,
        fmt::format("{} of host memory are more than a process can address", format_bytes(size)));
  }
  if (options.addresses_only) {
    map_addresses(size, options);
    return;
  }
  if (!options.for_transfers || !map_from_pool(size)) map_with_advice(size, options);
  if (::mlock(memory_.data(), memory_.size()) != 0 && options.log) {
    options.log(LogLevel::warning,
                fmt::format("{}: {} could not be pinned with mlock (raise `ulimit -l`)",
                            options.what, format_bytes(size)));
  }
  if (options.for_transfers) tell_pages(options);
}

// Pages of the pool are there or not: a mapping that succeeds has reserved them.
bool HostRegion::map_from_pool(Bytes size) {
  const std::uint64_t length = round_up(size, kHugePage).value;
  void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT), -1, 0);
  if (address == MAP_FAILED) return false;
  mapping_ = {static_cast<std::byte*>(address), length};
  memory_ = mapping_.first(size.value);
  pages_ = Pages::huge_tlb;
  if (touch(memory_) == 0) return true;
  ::munmap(mapping_.data(), mapping_.size());  // a limit of the control group
  return false;
}

void HostRegion::map_addresses(Bytes size, const Options& options) {
  const std::uint64_t length = round_up(size, kHugePage).value;
  mapping_ = map_anonymous(length, PROT_READ, options.what);
  memory_ = mapping_.first(size.value);
}

void HostRegion::map_with_advice(Bytes size, const Options& options) {
  const std::uint64_t length = (round_up(size, kHugePage) + kHugePage).value;
  mapping_ = map_anonymous(length, PROT_READ | PROT_WRITE, options.what);
  const auto start = reinterpret_cast<std::uintptr_t>(mapping_.data());
  memory_ = mapping_.subspan(round_up(start, kHugePage.value) - start, size.value);
  pages_ = Pages::small;
  // Huge pages decide the rate of direct I/O (4 KiB pages: a quarter of it); without them the
  // region still works.
  const bool advised =
      ::madvise(memory_.data(), round_up(size, kHugePage).value, MADV_HUGEPAGE) == 0;
  if (const int errnum = touch(memory_); errnum != 0) {
    ::munmap(mapping_.data(), mapping_.size());
    throw Error(ErrorCode::budget_exceeded,
                fmt::format("cannot have {} of {} in RAM; lower budgets.host", format_bytes(size),
                            options.what),
                {.errnum = errnum});
  }
  if (advised && options.for_transfers && 10 * on_huge_pages(memory_) >= 9 * size) {
    pages_ = Pages::transparent_huge;
  }
}

Bytes HostRegion::page_size() const { return pages_ == Pages::small ? kSmallPage : kHugePage; }

void HostRegion::tell_pages(const Options& options) const {
  if (!options.log) return;
  const std::string size = format_bytes(Bytes{memory_.size()});
  switch (pages_) {
    case Pages::huge_tlb:
      options.log(LogLevel::info,
                  fmt::format("{}: {} on 2 MiB pages (MAP_HUGETLB)", options.what, size));
      break;
    case Pages::transparent_huge:
      options.log(LogLevel::info,
                  fmt::format("{}: {} on 2 MiB pages (transparent)", options.what, size));
      break;
    case Pages::small:
      options.log(LogLevel::warning,
                  fmt::format("{}: {} on 4 KiB pages, on which direct I/O is several times slower; "
                              "reserve vm.nr_hugepages or set "
                              "/sys/kernel/mm/transparent_hugepage/enabled to madvise",
                              options.what, size));
      break;
  }
}

HostRegion::~HostRegion() {
  if (mapping_.empty()) return;
  const int result = ::munmap(mapping_.data(), mapping_.size());
  STRATA_ASSERT(result == 0, fmt::format("munmap: errno {}", errno));
}

}  // namespace strata
