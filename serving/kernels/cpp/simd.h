// Vectors of W floats, W fixed at compile time: 16 with AVX512, else 8. The same source serves both, and through the
// compiler's vector extensions also machines that are not x86.
//
// Arithmetic is the same for every element whatever its lane, so results do not depend on how work was split. Built
// with -ffp-contract=off: only fma() fuses a multiplication and an addition, if the CPU has the instruction.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hk {

#if defined(__AVX512F__)
#define HK_AVX512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(HK_WIDE)
#define HK_AVX2
#endif

#if defined(HK_AVX512) || defined(HK_WIDE)  // HK_WIDE: W = 16 without AVX512, for tests
constexpr int W = 16;
#else
constexpr int W = 8;
#endif

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));
typedef uint8_t vb __attribute__((vector_size(W)));

template <class V>
inline V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

inline vf loadf(const float* p) { return load<vf>(p); }
inline void storef(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
inline vf splat(float x) { return x - vf{}; }

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

// Keeps a value in a register; otherwise the compiler would load it again for every use.
template <class V>
inline void pin(V& v) {
#if defined(HK_AVX512)
  asm("" : "+v"(v));
#elif defined(HK_AVX2)
  asm("" : "+x"(v));
#else
  (void)v;
#endif
}

inline vf fma(vf a, vf b, vf c) {
#if defined(HK_AVX512)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(HK_AVX2)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  vf r;
  for (int i = 0; i < W; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#else
  return a * b + c;
#endif
}

// For integer arithmetic: each lane of vi as a pair of int16.
typedef int16_t vs __attribute__((vector_size(W * 4)));
inline vi splat_int(int32_t x) { return x + vi{}; }
inline vi subtract_pairs(vi a, vi b) { return (vi)((vs)a - (vs)b); }

// acc += a0·b0 + a1·b1 for the pair in each lane; exact while it fits 32 bits.
inline void add_dot_pairs(vi& acc, vi a, vi b) {
#if defined(__AVX512VNNI__)
  acc = (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  acc += (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__) && defined(HK_AVX2)
  acc = (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#elif defined(HK_AVX2)
  acc += (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  acc += (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
  pin(acc);  // otherwise the compiler computes all products first, for which there are not enough registers
}

// acc += Σ a[i] · b[i] for the four bytes in each lane, a unsigned and at most 15, b signed; exact.
inline void add_dot_quads(vi& acc, vi a, vi b) {
#if defined(__AVX512VNNI__)
  acc = (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  acc += (vi)_mm512_madd_epi16(_mm512_maddubs_epi16((__m512i)a, (__m512i)b), _mm512_set1_epi16(1));
#elif defined(__AVXVNNI__) && defined(HK_AVX2)
  acc = (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#elif defined(HK_AVX2)
  acc += (vi)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)a, (__m256i)b), _mm256_set1_epi16(1));
#else
  for (int i = 0; i < 32; i += 8) acc += (a >> i & 255) * (b << (24 - i) >> 24);
#endif
  pin(acc);
}

inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }

// Rounds to nearest, ties to even; for |v| < 2^22.
inline vi round_to_int(vf v) { return (vi)(v + 12582912.0f) - 0x4b400000; }

inline vf select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

// b if either is NaN.
inline vf max(vf a, vf b) {
#if defined(HK_AVX512)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(HK_AVX2)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return select(a > b, a, b);
#endif
}

inline vf min(vf a, vf b) {
#if defined(HK_AVX512)
  return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(HK_AVX2)
  return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return select(a < b, a, b);
#endif
}

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

inline float half_to_float(uint16_t h) {
  uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023, sign = uint32_t(h & 0x8000) << 16;
  if (exponent == 0) {
    float value = std::ldexp(float(mantissa), -24);
    return sign ? -value : value;
  }
  uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// Rounds to nearest, ties to even; not for NaN.
inline BFloat16 round_to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline void round_to_bfloat16(vf v, BFloat16* to) {
#if defined(HK_AVX512) && defined(__AVX512BF16__)
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &rounded, sizeof rounded);
#else
  for (int i = 0; i < W; i++) to[i] = round_to_bfloat16(v[i]);
#endif
}

inline vf widen(const float* p) { return loadf(p); }

inline vf widen(const BFloat16* p) {
#if defined(HK_AVX512)
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)load<vh>(p)), 16);
#elif defined(HK_AVX2)
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)load<vh>(p)), 16);
#else
  return (vf)(__builtin_convertvector(load<vh>(p), vu) << 16);
#endif
}

inline vf widen(const Half* p) {
#if defined(HK_AVX512)
  return (vf)_mm512_cvtph_ps((__m256i)load<vh>(p));
#elif defined(HK_AVX2)
  return (vf)_mm256_cvtph_ps((__m128i)load<vh>(p));
#else
  vf v;
  for (int i = 0; i < W; i++) v[i] = half_to_float(p[i].bits);
  return v;
#endif
}

// W unsigned bytes as int32. The intrinsics are there because GCC before 13 converts such vectors lane by lane.
inline vi widen_bytes(const uint8_t* p) {
#if defined(HK_AVX512)
  return (vi)_mm512_cvtepu8_epi32((__m128i)load<vb>(p));
#elif defined(HK_AVX2)
  return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  return __builtin_convertvector(load<vb>(p), vi);
#endif
}

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
