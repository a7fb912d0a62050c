// Vectors for any CPU in plain C++, of 8 floats. simd.h says what each function does.
#pragma once

namespace hk {
#if defined(HK_WIDE)  // the code for vectors of 16 floats without AVX512, for tests
constexpr int W = 16;
#else
constexpr int W = 8;
#endif
}  // namespace hk

#include "simd_vectors.h"

namespace hk {

template <class V>
inline void pin(V&) {}

inline vf fma(vf a, vf b, vf c) {
#if defined(__FP_FAST_FMAF)
  vf r;
  for (int i = 0; i < W; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#else
  return a * b + c;
#endif
}

inline vf max(vf a, vf b) { return select(a > b, a, b); }
inline vf min(vf a, vf b) { return select(a < b, a, b); }

inline void add_dot_pairs(vi& acc, vi a, vi b) {
  acc += (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
}

inline void add_dot_quads(vi& acc, vi a, vi b) {
  for (int i = 0; i < 32; i += 8) acc += (a >> i & 255) * (b << (24 - i) >> 24);
}

inline void add_dot_bfloat16(vf& acc, vu a, vu b) {
  acc = fma((vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u), acc);
  acc = fma((vf)(a << 16), (vf)(b << 16), acc);
}

inline void round_to_bfloat16(vf v, BFloat16* to) {
  for (int i = 0; i < W; i++) to[i] = round_to_bfloat16(v[i]);
}

inline vf widen(const BFloat16* p) { return (vf)(__builtin_convertvector(load<vh>(p), vu) << 16); }

inline vf widen(const Half* p) {
  vf v;
  for (int i = 0; i < W; i++) v[i] = half_to_float(p[i].bits);
  return v;
}

inline vi widen_bytes(const uint8_t* p) { return __builtin_convertvector(load<vb>(p), vi); }

inline void store_quads(int8_t* to, vi v) {
  constexpr int kFrom[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (int i = 0; i < W; i++) to[i] = int8_t(v[i / 8 * 8 + kFrom[i % 8]]);
}

}  // namespace hk
