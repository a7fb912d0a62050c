// Vectors of 16 floats: AVX512, with VNNI and BF16 where the CPU has them. simd.h says what each function does.
#pragma once

#include <immintrin.h>

#define HK_AVX512

namespace hk {
constexpr int W = 16;
}

#include "simd_vectors.h"

namespace hk {

template <class V>
inline void pin(V& v) {
  asm("" : "+v"(v));
}

inline vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline vf max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
inline vf min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }

inline void add_dot_pairs(vi& acc, vi a, vi b) {
#if defined(__AVX512VNNI__)
  acc = (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#else
  acc += (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#endif
  pin(acc);
}

#if defined(__AVX512VNNI__)
inline void add_dot_quads(vi& acc, vi a, vi b) {
  acc = (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
  pin(acc);
}
#else
#define HK_NARROW_SUMS
inline void add_dot_quads(vi& narrow, vi a, vi b) {
  narrow = (vi)_mm512_add_epi16((__m512i)narrow, _mm512_maddubs_epi16((__m512i)a, (__m512i)b));
  pin(narrow);
}

inline void add_narrow(vi& acc, vi narrow) { acc += (vi)_mm512_madd_epi16((__m512i)narrow, _mm512_set1_epi16(1)); }
#endif

inline void add_dot_bfloat16(vf& acc, vu a, vu b) {
#if defined(__AVX512BF16__)
  acc = (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)(__m512i)a, (__m512bh)(__m512i)b);
#else
  acc = fma((vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u), acc);
  acc = fma((vf)(a << 16), (vf)(b << 16), acc);
#endif
  pin(acc);
}

inline void round_to_bfloat16(vf v, BFloat16* to) {
#if defined(__AVX512BF16__)
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &rounded, sizeof rounded);
#else
  for (int i = 0; i < W; i++) to[i] = round_to_bfloat16(v[i]);
#endif
}

inline vf widen(const BFloat16* p) {
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)load<vh>(p)), 16);
}

inline vf widen(const Half* p) { return (vf)_mm512_cvtph_ps((__m256i)load<vh>(p)); }
inline vi widen_bytes(const uint8_t* p) { return (vi)_mm512_cvtepu8_epi32((__m128i)load<vb>(p)); }

inline void store_quads(int8_t* to, vi v) {
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(_mm512_cvtepi32_epi8((__m512i)v), order));
}

}  // namespace hk
