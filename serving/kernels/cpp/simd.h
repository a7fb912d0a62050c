// Vectors of W floats, W fixed at compile time: 16 with AVX512, else 8. The same source serves all; each set of
// instructions has a file with the same types and functions:
//   vf, vi, vu: vectors of float, int32_t, uint32_t. Casts between them keep the bits;
//   load, store, splat, splat_int, to_float, select: of any of them, or as their names say;
//   pin: keeps a value in a register; otherwise the compiler would load it again for every use, or compute all
//     products before it adds them, for which there are not enough registers;
//   fma, max, min: of floats; max and min give b if either is NaN;
//   subtract_pairs: a - b, each lane a pair of int16;
//   add_dot_pairs: acc += a0 · b0 + a1 · b1 for such a pair in each lane; exact while it fits 32 bits;
//   add_dot_quads: acc += Σ a[i] · b[i] for the four bytes in each lane, a unsigned and at most 15, b signed and at
//     least -127; exact. With HK_NARROW_SUMS a lane of acc is two int16 sums, which eight calls cannot overflow, and
//     add_narrow adds both to a lane: a CPU without an instruction for four products then needs two for most of them instead of three;
//   add_dot_bfloat16: acc += a1 · b1, then acc += a0 · b0, for the pair of bfloat16 in each lane. An instruction for
//     it may round both sums only once;
//   widen, widen_bytes: W 16-bit floats as float, W unsigned bytes as int32_t;
//   round_to_bfloat16: to nearest, ties to even; not for NaN;
//   store_int16: the low 16 bits of each lane;
//   store_quads: the low 8 bits of each lane, eight at a time in the order of awq_int8.h, to an address aligned to 16.
//
// Arithmetic is the same for every element whatever its lane, so results do not depend on how work was split. Built
// with -ffp-contract=off: only fma() fuses a multiplication and an addition, if the CPU has the instruction.
#pragma once

#if defined(HK_GENERIC)  // for tests
#include "simd_generic.h"
#elif defined(__AVX512F__) && defined(__AVX512BW__)
#include "simd_avx512.h"
#elif defined(HK_WIDE)
#include "simd_generic.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include "simd_neon.h"
#else
#include "simd_generic.h"
#endif

namespace hk {

inline vf loadf(const float* p) { return load<vf>(p); }
inline void storef(float* p, vf v) { store(p, v); }

// Loads the first n lanes; the others are 0.
inline vf loadf_n(const float* p, int n) {
  if (n >= W) return loadf(p);
  vf v = {};
  std::memcpy(&v, p, n * sizeof(float));
  return v;
}

inline void storef_n(float* p, vf v, int n) {
  if (n >= W) return storef(p, v);
  std::memcpy(p, &v, n * sizeof(float));
}

// Rounds to nearest, ties to even; for |v| < 2^22.
inline vi round_to_int(vf v) { return (vi)(v + 12582912.0f) - 0x4b400000; }

typedef float v4 __attribute__((vector_size(16)));

// Reduces to 4 lanes: adds lane i + half to lane i, for half = W/2 … 4.
inline v4 fold(vf v) {
  v4 part[W / 4];
  std::memcpy(part, &v, sizeof v);
  for (int half = W / 8; half; half /= 2)
    for (int i = 0; i < half; i++) part[i] += part[i + half];
  return part[0];
}

// The sums of the lanes of four vectors. Each is summed in the same order: reduced to 4 lanes, to 2, to 1.
[[gnu::always_inline]] inline v4 sum4(vf a, vf b, vf c, vf d) {
  const v4 fa = fold(a), fb = fold(b), fc = fold(c), fd = fold(d);
  const v4 ab = __builtin_shufflevector(fa, fb, 0, 4, 1, 5) + __builtin_shufflevector(fa, fb, 2, 6, 3, 7);
  const v4 cd = __builtin_shufflevector(fc, fd, 0, 4, 1, 5) + __builtin_shufflevector(fc, fd, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

inline float sum(vf v) { return sum4(v, v, v, v)[0]; }

inline vf widen(const float* p) { return loadf(p); }

// Loads and widens the first n values; the other lanes are 0.
template <class T>
inline vf widen_n(const T* p, int n) {
  if (n >= W) return widen(p);
  T padded[W] = {};
  std::memcpy(padded, p, n * sizeof(T));
  return widen(padded);
}

// The largest lane.
inline float largest(vf v) {
  v4 part[W / 4];
  std::memcpy(part, &v, sizeof v);
  for (int i = 1; i < W / 4; i++) part[0] = part[i] > part[0] ? part[i] : part[0];
  const v4 other = __builtin_shufflevector(part[0], part[0], 2, 3, 2, 3);
  const v4 pair = other > part[0] ? other : part[0];
  return pair[0] > pair[1] ? pair[0] : pair[1];
}

// e^x for |x| ≤ 87; x is clamped to that range. Range reduction by ln 2 in two parts, then a polynomial (as in Cephes'
// expf); error up to 2 ulp.
inline vf exp(vf x) {
  const vf clipped = min(max(x, splat(-87.0f)), splat(87.0f));
  const vf shifted = fma(clipped, splat(1.44269504088896341f), splat(12582912.0f));  // n in the low bits
  const vf n = shifted - 12582912.0f;
  const vf r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clipped));
  vf p = fma(splat(1.9875691500e-4f), r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  return (vf)((vi)p + ((vi)shifted << 23));  // p · 2^n
}

}  // namespace hk
