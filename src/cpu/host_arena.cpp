#include "cpu/host_arena.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata {
namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

}  // namespace

HostArena::HostArena(Bytes size) {
  if (size == Bytes{0}) return;
  // One huge page more than needed, so that an aligned start always exists.
  mapped_ = Bytes{round_up(size.value, kHugePage) + kHugePage};
  mapping_ = ::mmap(nullptr, mapped_.value, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    throw Error(ErrorCode::device, "mmap of the device arena (lower the device budget)",
                {.errnum = errno, .size = size});
  }
  const auto start = round_up(reinterpret_cast<std::uintptr_t>(mapping_), kHugePage);
  bytes_ = {reinterpret_cast<std::byte*>(start), size.value};
  // EINVAL: a kernel without transparent huge pages. Slower, not wrong.
  const int advised = ::madvise(bytes_.data(), round_up(size.value, kHugePage), MADV_HUGEPAGE);
  const int errnum = errno;
  if (advised != 0 && errnum != EINVAL) {
    ::munmap(mapping_, mapped_.value);
    throw Error(ErrorCode::device, "madvise(MADV_HUGEPAGE) of the device arena",
                {.errnum = errnum, .size = size});
  }
}

HostArena::~HostArena() {
  if (mapping_ == nullptr) return;
  const int unmapped = ::munmap(mapping_, mapped_.value);
  STRATA_ASSERT(unmapped == 0, fmt::format("munmap of the device arena: errno {}", errno));
}

}  // namespace strata
