#include "memory/region.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

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

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
constexpr Bytes kAddressable{std::uint64_t{1} << 47};  // of x86-64 with four levels of pages

}  // namespace

HostRegion::HostRegion(Bytes size, const LogSink& log) {
  if (size.value == 0) return;
  if (size > kAddressable) {
    throw Error(
        ErrorCode::budget_exceeded,
        fmt::format("{} of host memory are more than a process can address", format_bytes(size)));
  }
  const std::uint64_t length = round_up(size.value, kHugePage) + kHugePage;
  void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(ErrorCode::budget_exceeded,
                fmt::format("cannot map {} of host memory; lower budgets.host", format_bytes(size)),
                {.errnum = errno});
  }
  mapping_ = {static_cast<std::byte*>(address), length};
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  memory_ = mapping_.subspan(round_up(start, kHugePage) - start, size.value);
  // Huge pages decide the rate of direct I/O (4 KiB pages: a quarter of it); without them the
  // region still works.
  [[maybe_unused]] const int advised =
      ::madvise(memory_.data(), round_up(size.value, kHugePage), MADV_HUGEPAGE);
  if (::mlock(memory_.data(), memory_.size()) != 0 && log) {
    log(LogLevel::warning,
        fmt::format("mlock of {} failed (raise `ulimit -l`); host memory stays unpinned",
                    format_bytes(size)));
  }
}

HostRegion::~HostRegion() {
  if (mapping_.empty()) return;
  const int result = ::munmap(mapping_.data(), mapping_.size());
  STRATA_ASSERT(result == 0, fmt::format("munmap: errno {}", errno));
}

}  // namespace strata
