// c[i] = a[i] + s b[i] with stores that go past the caches, by the widest instructions of this
// machine: the rate at which one core can move memory.
#pragma once

#include <cstddef>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {

#if defined(__x86_64__)
__attribute__((target("avx512f"))) inline void triad_avx512(const float* a, const float* b, float s, float* c,
                                                            std::size_t n) {
  const __m512 scale = _mm512_set1_ps(s);
  for (std::size_t i = 0; i < n; i += 16) {
    _mm512_stream_ps(c + i,
                     _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_mul_ps(scale, _mm512_loadu_ps(b + i))));
  }
}
__attribute__((target("avx2"))) inline void triad_avx2(const float* a, const float* b, float s, float* c,
                                                       std::size_t n) {
  const __m256 scale = _mm256_set1_ps(s);
  for (std::size_t i = 0; i < n; i += 8) {
    _mm256_stream_ps(c + i,
                     _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_mul_ps(scale, _mm256_loadu_ps(b + i))));
  }
}
inline void triad_sse2(const float* a, const float* b, float s, float* c, std::size_t n) {
  const __m128 scale = _mm_set1_ps(s);
  for (std::size_t i = 0; i < n; i += 4) {
    _mm_stream_ps(c + i, _mm_add_ps(_mm_loadu_ps(a + i), _mm_mul_ps(scale, _mm_loadu_ps(b + i))));
  }
}
#endif

// c is aligned to a cache line; n is a multiple of 16.
inline void triad(const float* a, const float* b, float s, float* c, std::size_t n) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    triad_avx512(a, b, s, c, n);
  } else if (__builtin_cpu_supports("avx2")) {
    triad_avx2(a, b, s, c, n);
  } else {
    triad_sse2(a, b, s, c, n);
  }
  _mm_sfence();
#else
  for (std::size_t i = 0; i < n; ++i) c[i] = a[i] + s * b[i];
#endif
}

}  // namespace bench
