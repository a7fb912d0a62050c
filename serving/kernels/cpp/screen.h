// Finds the few columns of the head that may have a row's largest product, without reading the whole head.
//
// A 4-bit copy of the head, with its scales 4.75 bits a weight, gives products a[n] close to dense.h's e[n]. With ŵ the copy of w,
// and x̂ the inputs as awq_int8.h rounds them, Cauchy's inequality bounds their difference:
//   |a[n] − e[n]| ≤ δ[n] = ‖x‖ ‖w[n] − ŵ[n]‖ + ‖x − x̂‖ ‖ŵ[n]‖ + what the sums are rounded by.
// With m the allowed column of the largest a, no column with a[n] + δ[n] < e[m] can have the largest e. On text, a
// median of 14 of 151,936 columns is left. So the choice is the one from all exact products.
#pragma once

#include <cmath>
#include <limits>

#include "awq_int8.h"
#include "dense.h"

namespace hk {

struct Screen {
  Awq awq;                // the copy; its inputs are int8
  float *errors, *norms;  // [out] each: ‖w − ŵ‖ and ‖ŵ‖
};

constexpr float kSlack = 1.001f;  // for the rounding of norms, and of scales that awq_int8.h multiplies with

// The root of a sum of n squares, not less than the exact one: squares of tiny numbers are rounded to 0.
inline float norm_of(float squares, int64_t n) { return std::sqrt(squares + n * std::numeric_limits<float>::min()) * kSlack; }

// The smallest normal float16 that is at least x, or the largest there is.
inline Half round_up_to_half(float x) {
  x = std::min(std::max(x, 6.1035156e-5f), 65504.0f);
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return {uint16_t(((bits + 0x1fff) >> 13) - (112 << 10))};
}

// Rounds column n of the copy, which is row n of the head, and measures what that changes.
template <class T>
void pack_screen_column(const Dense& d, const T* data, const Screen& s, int64_t n) {
  const int64_t group = s.awq.group, groups = s.awq.groups(), strip = n / W, lane = n % W;
  uint32_t* words = const_cast<uint32_t*>(s.awq.words(strip, 0)) + lane;
  vf error = {}, norm = {};
  for (int64_t g = 0; g < groups; g++) {
    const T* w = data + n * d.in + g * group;
    vf low = {}, high = {};
    for (int64_t k = 0; k < group; k += W) {
      const vf values = widen(w + k);
      low = max(low, -values);
      high = max(high, values);
    }
    const float lowest = -largest(low);
    const Half half = round_up_to_half((largest(high) - lowest) / 15.0f);
    const float scale = half_to_float(half.bits), zero = std::min(15.0f, std::nearbyint(-lowest / scale));
    uint32_t codes = 0;
    for (int64_t k = 0; k < group; k += W) {
      const vf values = widen(w + k);
      const vi code = round_to_int(min(max(values * (1.0f / scale) + zero, splat(0.0f)), splat(15.0f)));
      const vf copy = (to_float(code) - zero) * scale;
      error = fma(values - copy, values - copy, error);
      norm = fma(copy, copy, norm);
      for (int i = 0; i < W; i++) {
        codes |= uint32_t(code[i]) << 4 * (i % 2 * 4 + i % 8 / 2);  // the order of awq.h
        if (i % 8 < 7) continue;
        *words = codes;
        words += W, codes = 0;
      }
    }
    const int64_t at = (strip * groups + g) * W + lane;
    const_cast<uint8_t*>(s.awq.zeros)[at] = uint8_t(zero);
    const_cast<Half*>(s.awq.scales)[at] = half;
  }
  s.errors[n] = norm_of(sum(error), d.in);
  s.norms[n] = norm_of(sum(norm), d.in);
}

inline void pack_screen(Pool& pool, const Dense& d, const Screen& s) {
  with_type(d.data, d.dtype, [&](auto data) {
    pool.each_range(d.out, 8 * W, [&](int64_t first, int64_t last) {
      for (int64_t n = first; n < last; n++) pack_screen_column(d, data, s, n);
    });
  });
}

// δ[n] = error · s.errors[n] + norm · s.norms[n].
struct Bound {
  float error, norm;

  Bound(const float* x, const Awq& a) {
    float squares = 0, rounding = 0;
    for (int64_t k = 0; k < a.in; k += a.group) {
      vf top = {}, sums = {};
      for (int64_t i = 0; i < a.group; i += W) {
        const vf v = loadf(x + k + i);
        top = max(top, max(v, -v));
        sums = fma(v, v, sums);
      }
      const float step = largest(top) / 254.0f;  // half of the distance of two int8 values
      squares += sum(sums), rounding += a.group * step * step;
    }
    const float length = norm_of(squares, a.in);
    const float sums = a.in * 0x1p-23f * length;  // more than the roundings of both sums, dense.h's and the copy's
    error = length + sums;
    norm = norm_of(rounding, a.in) + sums;
  }
};

// Clears the bits of columns that cannot have the largest product. None is cleared where products are not numbers.
// Sets `largest` to the exact product of the column that is likely to have the largest one, and `cleared` to log Σ e^a
// over the columns that were cleared.
template <class T>
void narrow_row(const Dense& d, const T* data, const Screen& s, const float* x, const float* products, uint32_t* bits,
                float* largest, float* cleared) {
  typedef float Lanes[32];
  const int64_t words = (d.out + 31) / 32;
  const auto block = [&](const float* from, int64_t word, Lanes& lanes) {  // 32 columns, padded with 0
    const int64_t count = std::min<int64_t>(32, d.out - 32 * word);
    if (count < 32) std::memset(lanes, 0, sizeof lanes);
    std::memcpy(lanes, from + 32 * word, count * sizeof(float));
  };
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  Lanes a, errors, norms, top;
  for (float& lane : top) lane = kLowest;
  for (int64_t word = 0; word < words; word++) {
    if (!bits[word]) continue;
    block(products, word, a);
    for (int i = 0; i < 32; i++) top[i] = (bits[word] >> i & 1) && a[i] > top[i] ? a[i] : top[i];
  }
  const float highest = *std::max_element(top, top + 32);
  int64_t best = -1;
  for (int64_t word = 0; word < words && best < 0; word++)
    for (uint32_t rest = bits[word]; rest && best < 0; rest &= rest - 1)
      if (const int64_t n = 32 * word + __builtin_ctz(rest); products[n] == highest) best = n;
  *largest = *cleared = kLowest;
  if (best < 0) return;
  const T* rows[kWeightRows];
  for (const T*& row : rows) row = data + best * d.in;
  float exact[kWeightRows];
  dot_tile<1>(rows, x, d.in, exact, kWeightRows);
  *largest = exact[0];
  const Bound bound(x, s.awq);
  vf sums = {};
  for (int64_t word = 0; word < words; word++) {
    if (!bits[word]) continue;
    block(products, word, a), block(s.errors, word, errors), block(s.norms, word, norms);
    uint32_t below = 0;
    for (int i = 0; i < 32; i++)
      below |= uint32_t(a[i] + (bound.error * errors[i] + bound.norm * norms[i]) < exact[0]) << i;
    below &= bits[word];
    bits[word] &= ~below;
    for (int i = 0; i < 32; i++) a[i] = below >> i & 1 ? a[i] - exact[0] : -100.0f;  // counts as nothing
    for (int i = 0; i < 32; i += W) sums += exp(loadf(a + i));
  }
  bits[best / 32] |= 1u << best % 32;
  *cleared = exact[0] + std::log(sum(sums));
}

constexpr int64_t kScreenedRows = 24;  // at a time, to bound the memory of their products

inline int64_t screen_floats(const Awq& a) { return Int16Rows::floats(a, kScreenedRows) + kScreenedRows * a.out; }

// Leaves in bits [rows, words] the columns that may have the row's largest product, and writes `largest` and `cleared`
// to sums [rows, 2]. x: [rows, in]. pool.shared() must hold screen_floats(s.awq).
inline void narrow(Pool& pool, const Dense& d, const Screen& s, const float* x, int64_t rows, uint32_t* bits,
                   float* sums) {
  float* products = pool.shared() + Int16Rows::floats(s.awq, kScreenedRows);
  for (int64_t first = 0; first < rows; first += kScreenedRows) {
    const int64_t count = std::min(kScreenedRows, rows - first);
    awq_gemm_int8(pool, s.awq, x + first * d.in, count, products);
    with_type(d.data, d.dtype, [&](auto data) {
      pool.each(count, [&](int64_t i) {
        const int64_t m = first + i;
        narrow_row(d, data, s, x + m * d.in, products + i * d.out, bits + m * ((d.out + 31) / 32), sums + 2 * m,
                   sums + 2 * m + 1);
      });
    });
  }
}

}  // namespace hk
