// Vectors of 8 floats on ARM: two NEON registers each, so that lanes and bits are those of AVX2. Uses the dot products
// of int8 and of bfloat16 where the CPU has them. simd.h says what each function does.
// Source: Arm Architecture Reference Manual for A-profile (SDOT, BFDOT, FCVTL, BFCVTN).
#pragma once

#include <arm_neon.h>

#include "floats.h"

namespace hk {

constexpr int W = 8;

// A vector of E in two registers, with the operators of the compiler's vector extensions. A conversion to a vector of
// other elements keeps the bits.
template <class E>
struct Two {
  typedef E Part __attribute__((vector_size(16)));
  Part low, high;

  Two() = default;
  Two(Part low, Part high) : low(low), high(high) {}
  Two(E x) : low(Part{x, x, x, x}), high(low) {}
  template <class F>
  explicit Two(Two<F> other) : low((Part)other.low), high((Part)other.high) {}
  E operator[](int i) const { return i < 4 ? low[i] : high[i - 4]; }

  friend Two operator+(Two a, Two b) { return {a.low + b.low, a.high + b.high}; }
  friend Two operator-(Two a, Two b) { return {a.low - b.low, a.high - b.high}; }
  friend Two operator*(Two a, Two b) { return {a.low * b.low, a.high * b.high}; }
  friend Two operator/(Two a, Two b) { return {a.low / b.low, a.high / b.high}; }
  friend Two operator&(Two a, Two b) { return {a.low & b.low, a.high & b.high}; }
  friend Two operator|(Two a, Two b) { return {a.low | b.low, a.high | b.high}; }
  friend Two operator<<(Two a, int bits) { return {a.low << bits, a.high << bits}; }
  friend Two operator>>(Two a, int bits) { return {a.low >> bits, a.high >> bits}; }
  friend Two operator-(Two a) { return {-a.low, -a.high}; }
  friend Two operator~(Two a) { return {~a.low, ~a.high}; }
  friend Two& operator+=(Two& a, Two b) { return a = a + b; }
  friend Two<int32_t> operator<(Two a, Two b) { return {a.low < b.low, a.high < b.high}; }
  friend Two<int32_t> operator>(Two a, Two b) { return {a.low > b.low, a.high > b.high}; }
  friend Two<int32_t> operator>=(Two a, Two b) { return {a.low >= b.low, a.high >= b.high}; }
};

typedef Two<float> vf;
typedef Two<int32_t> vi;
typedef Two<uint32_t> vu;

template <class V>
inline V load(const void* p) {
  V v;
  std::memcpy(&v.low, p, 16);
  std::memcpy(&v.high, static_cast<const char*>(p) + 16, 16);
  return v;
}

template <class V>
inline void store(void* p, V v) {
  std::memcpy(p, &v.low, 16);
  std::memcpy(static_cast<char*>(p) + 16, &v.high, 16);
}

inline vf splat(float x) { return x; }
inline vi splat_int(int32_t x) { return x; }

inline vi subtract_pairs(vi a, vi b) {
  return {(int32x4_t)vsubq_s16((int16x8_t)a.low, (int16x8_t)b.low),
          (int32x4_t)vsubq_s16((int16x8_t)a.high, (int16x8_t)b.high)};
}

inline vf to_float(vi v) { return {vcvtq_f32_s32((int32x4_t)v.low), vcvtq_f32_s32((int32x4_t)v.high)}; }

inline int16x8_t to_int16(vi v) { return vcombine_s16(vmovn_s32((int32x4_t)v.low), vmovn_s32((int32x4_t)v.high)); }
inline void store_int16(int16_t* p, vi v) { vst1q_s16(p, to_int16(v)); }

inline vf select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

template <class E>
inline void pin(Two<E>& v) {
  asm("" : "+w"(v.low), "+w"(v.high));
}

inline vf fma(vf a, vf b, vf c) {
  return {vfmaq_f32((float32x4_t)c.low, (float32x4_t)a.low, (float32x4_t)b.low),
          vfmaq_f32((float32x4_t)c.high, (float32x4_t)a.high, (float32x4_t)b.high)};
}

inline vf max(vf a, vf b) { return select(a > b, a, b); }
inline vf min(vf a, vf b) { return select(a < b, a, b); }

// For one register: acc += a0 · b0 + a1 · b1 for each pair of int16.
inline int32x4_t add_pairs_s16(int32x4_t acc, int16x8_t a, int16x8_t b) {
  return vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}

inline void add_dot_pairs(vi& acc, vi a, vi b) {
  acc = {add_pairs_s16((int32x4_t)acc.low, (int16x8_t)a.low, (int16x8_t)b.low),
         add_pairs_s16((int32x4_t)acc.high, (int16x8_t)a.high, (int16x8_t)b.high)};
  pin(acc);
}

// For one register: acc += the sum of the four products of int8 in each lane. As a is at most 15, the sum of two fits
// int16.
inline int32x4_t add_quads_s8(int32x4_t acc, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, a, b);
#else
  return vpadalq_s16(acc, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
#endif
}

inline void add_dot_quads(vi& acc, vi a, vi b) {
  acc = {add_quads_s8((int32x4_t)acc.low, (int8x16_t)a.low, (int8x16_t)b.low),
         add_quads_s8((int32x4_t)acc.high, (int8x16_t)a.high, (int8x16_t)b.high)};
  pin(acc);
}

inline void add_dot_bfloat16(vf& acc, vu a, vu b) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  acc = {vbfdotq_f32((float32x4_t)acc.low, (bfloat16x8_t)a.low, (bfloat16x8_t)b.low),
         vbfdotq_f32((float32x4_t)acc.high, (bfloat16x8_t)a.high, (bfloat16x8_t)b.high)};
#else
  acc = fma((vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u), acc);
  acc = fma((vf)(a << 16), (vf)(b << 16), acc);
#endif
  pin(acc);
}

inline void round_to_bfloat16(vf v, BFloat16* to) {
  const vu bits = (vu)v, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  store_int16(reinterpret_cast<int16_t*>(to), (vi)rounded);
}

inline vf widen(const BFloat16* p) {
  const uint16x8_t bits = vld1q_u16(reinterpret_cast<const uint16_t*>(p));
  return {(float32x4_t)vshll_n_u16(vget_low_u16(bits), 16), (float32x4_t)vshll_high_n_u16(bits, 16)};
}

inline vf widen(const Half* p) {
  const float16x8_t halves = (float16x8_t)vld1q_u16(reinterpret_cast<const uint16_t*>(p));
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}

inline vi widen_bytes(const uint8_t* p) {
  const uint16x8_t wide = vmovl_u8(vld1_u8(p));
  return {(int32x4_t)vmovl_u16(vget_low_u16(wide)), (int32x4_t)vmovl_high_u16(wide)};
}

inline void store_quads(int8_t* to, vi v) {
  const int8x8_t bytes = vmovn_s16(to_int16(v));
  vst1_s8(to, vzip1_s8(bytes, vext_s8(bytes, bytes, 4)));
}

}  // namespace hk
