// Copies into memory that another core reads next. A plain copy first fetches each line from the
// core that read it last; non-temporal stores skip that (measured with two ranks on one busy host:
// reduce-scatter 3.8-4.1 GB/s against 3.2-3.6, all-gather 4.1-5.1 against 3.2-4.7).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace strata::mpi {

// On return the bytes are ordered before any later store of this thread.
// Pre: dst is aligned to 32 bytes.
inline void copy_to_window(std::byte* dst, const std::byte* src, std::uint64_t size_bytes) {
  std::uint64_t done = 0;
#if defined(__AVX__)
  constexpr std::uint64_t kVector = sizeof(__m256i);
  for (; done + 4 * kVector <= size_bytes; done += 4 * kVector) {
    __m256i line[4];
    for (std::uint64_t i = 0; i < 4; ++i) {
      line[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + done + i * kVector));
    }
    for (std::uint64_t i = 0; i < 4; ++i) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + done + i * kVector), line[i]);
    }
  }
  _mm_sfence();  // a release store alone does not order non-temporal ones
#endif
  if (done < size_bytes) std::memcpy(dst + done, src + done, size_bytes - done);
}

}  // namespace strata::mpi
