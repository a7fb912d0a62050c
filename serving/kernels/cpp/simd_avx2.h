// Vectors of 8 floats: AVX2 with FMA, and VNNI where the CPU has it. simd.h says what each function does.
#pragma once

#include <immintrin.h>

#define HK_AVX2

namespace hk {
constexpr int W = 8;
}

#include "simd_vectors.h"

namespace hk {

template <class V>
inline void pin(V& v) {
  asm("" : "+x"(v));
}

inline vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline vf max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
inline vf min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }

inline void add_dot_pairs(vi& acc, vi a, vi b) {
#if defined(__AVXVNNI__)
  acc = (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#else
  acc += (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
  pin(acc);
}

#if defined(__AVXVNNI__)
inline void add_dot_quads(vi& acc, vi a, vi b) {
  acc = (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
  pin(acc);
}
#else
#define HK_NARROW_SUMS
inline void add_dot_quads(vi& narrow, vi a, vi b) {
  narrow = (vi)_mm256_add_epi16((__m256i)narrow, _mm256_maddubs_epi16((__m256i)a, (__m256i)b));
  pin(narrow);
}

inline void add_narrow(vi& acc, vi narrow) { acc += (vi)_mm256_madd_epi16((__m256i)narrow, _mm256_set1_epi16(1)); }
#endif

inline void add_dot_bfloat16(vf& acc, vu a, vu b) {
  acc = fma((vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u), acc);
  acc = fma((vf)(a << 16), (vf)(b << 16), acc);
}

inline void round_to_bfloat16(vf v, BFloat16* to) {
  for (int i = 0; i < W; i++) to[i] = round_to_bfloat16(v[i]);
}

// The intrinsics are there because GCC before 13 converts such vectors lane by lane.
inline vf widen(const BFloat16* p) {
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)load<vh>(p)), 16);
}

inline vf widen(const Half* p) { return (vf)_mm256_cvtph_ps((__m128i)load<vh>(p)); }

inline vi widen_bytes(const uint8_t* p) {
  return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

inline void store_quads(int8_t* to, vi v) {
  const __m256i low = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi32(0x0c080400));
  const __m128i both = _mm_unpacklo_epi8(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), both);
}

}  // namespace hk
