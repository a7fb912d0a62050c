// The matmul of 4-bit weights with inputs rounded to int16 group by group: about twice as fast as in float32.
//
// x ≈ scale · v with |v| ≤ 32767 and one scale for each row and group. Within a group q − z and v are integers, and
// sums of their products are exact: |q − z| · |v| · group < 2^31. Across groups out[m, n] is one chain of fma in
// order. A row's result therefore never depends on other rows, and is the same on every CPU with fma. Rounding x
// costs 1e-5 of the largest value in its group, 30 times less than bfloat16 would.
#pragma once

#include "awq.h"

namespace hk {

// The rounded inputs: values [rows, in], scales [rows, groups].
struct Int16Rows {
  int16_t* values;
  float* scales;
  int64_t in, groups;

  Int16Rows(float* buffer, const Awq& a, int64_t rows)
      : values(reinterpret_cast<int16_t*>(buffer)), scales(buffer + rows * a.in / 2), in(a.in), groups(a.groups()) {}
  Int16Rows from(int64_t row) const {
    Int16Rows rest = *this;
    rest.values += row * in;
    rest.scales += row * groups;
    return rest;
  }
  // Room for the values and scales in floats; rows are rounded up to tiles of 16 for awq_amx.h.
  static int64_t floats(const Awq& a, int64_t rows) { return (rows + 15) / 16 * 16 * (a.in / 2 + a.groups()); }
};

// Rounds one group of one row. `size` is a multiple of 8, perhaps not of W.
inline void round_group(const float* x, int64_t size, int16_t* values, float* scale) {
  vf top = {};
  for (int64_t k = 0; k < size; k += W) {
    vf v = loadf_n(x + k, size - k);
    top = max(top, max(v, -v));
  }
  const float highest = largest(top);
  *scale = highest / 32767.0f;
  const float inverse = highest > 0 ? 32767.0f / highest : 0.0f;
  for (int64_t k = 0; k < size; k += W) {
    const vi rounded = round_to_int(loadf_n(x + k, size - k) * inverse);
    if (size - k >= W) {
      store_int16(values + k, rounded);
    } else {
      int16_t last[W];
      store_int16(last, rounded);
      std::memcpy(values + k, last, (size - k) * sizeof(int16_t));
    }
  }
}

inline void round_rows(Pool& pool, const Awq& a, const float* x, int64_t rows, const Int16Rows& fixed) {
  pool.each_range(rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++)
      for (int64_t g = 0; g < fixed.groups; g++) {
        const int64_t at = m * fixed.in + g * a.group;
        round_group(x + at, a.group, fixed.values + at, fixed.scales + m * fixed.groups + g);
      }
  });
}

// Calls f(i, n, w) for the four pairs of k's in eight: pair i is k = 8 b + 2 i and k + 1.
template <int NV, class F>
inline __attribute__((always_inline)) void unpack8(const Awq& a, const vi* zeros, int64_t strip, int64_t k,
                                                   F f) {
  vi words[NV];
#pragma GCC unroll 4
  for (int n = 0; n < NV; n++) words[n] = load_words<NV>(a, strip + n, k);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
    for (int n = 0; n < NV; n++) {
      vi w = subtract_pairs((vi)((vu)words[n] >> 4 * i) & 0x000f000f, zeros[n]);
      pin(w);
      f(i, n, w);
    }
}

template <int NV>
inline void load_group(const Awq& a, int64_t strip, int64_t g, vi* zeros, vf* scales) {
  for (int n = 0; n < NV; n++) {
    const int64_t at = ((strip + n) * a.groups() + g) * W;
    const vi zero = widen_bytes(a.zeros + at);
    zeros[n] = zero | zero << 16;
    scales[n] = widen(a.scales + at);
  }
}

inline vi pair_at(const int16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return splat_int(pair);
}

// Matmul for few rows: weights are unpacked in registers and never stored.
template <int MR, int NV>
void few_rows_int16(const Awq& a, int64_t strip, const Int16Rows& x, float* out) {
  vf total[MR][NV] = {};
  for (int64_t g = 0; g < x.groups; g++) {
    vi zeros[NV], acc[MR][NV] = {};
    vf scales[NV];
    load_group<NV>(a, strip, g, zeros, scales);
    for (int64_t k = g * a.group; k < (g + 1) * a.group; k += 8) {
      vi pairs[4][MR];
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++)
#pragma GCC unroll 6
        for (int m = 0; m < MR; m++) pairs[i][m] = pair_at(x.values + m * x.in + k + 2 * i);
      unpack8<NV>(a, zeros, strip, k, [&](int i, int n, vi w) __attribute__((always_inline)) {
#pragma GCC unroll 6
        for (int m = 0; m < MR; m++) add_dot_pairs(acc[m][n], w, pairs[i][m]);
      });
    }
#pragma GCC unroll 6
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
      for (int n = 0; n < NV; n++)
        total[m][n] = fma(to_float(acc[m][n]), scales[n] * x.scales[m * x.groups + g], total[m][n]);
  }
#pragma GCC unroll 6
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
    for (int n = 0; n < NV; n++)
      storef_n(out + m * a.out + (strip + n) * W, total[m][n], a.out - (strip + n) * W);
}

// NV unpacked strips: pairs of int16 [in / 2, NV · W] and scales [groups, NV · W].
template <int NV>
struct Unpacked {
  int32_t* pairs;
  float* scales;

  Unpacked(const Awq& a, int64_t strip) {
    scales = scratch((a.in / 2 + a.groups()) * NV * W);
    pairs = reinterpret_cast<int32_t*>(scales + a.groups() * NV * W);
    for (int64_t g = 0; g < a.groups(); g++) {
      vi zeros[NV];
      vf scale[NV];
      load_group<NV>(a, strip, g, zeros, scale);
      for (int n = 0; n < NV; n++) storef(scales + (g * NV + n) * W, scale[n]);
      for (int64_t k = g * a.group; k < (g + 1) * a.group; k += 8)
        unpack8<NV>(a, zeros, strip, k, [&](int i, int n, vi w) __attribute__((always_inline)) {
          store(pairs + ((k / 2 + i) * NV + n) * W, w);
        });
    }
  }
};

template <int MR, int NV>
void tile_int16(const Unpacked<NV>& w, const Int16Rows& x, int64_t group, float* out, int64_t ldo, int64_t columns) {
  const int16_t* values = x.values;
  const int32_t* pairs = w.pairs;
  vf total[MR][NV] = {};
  prefetch_tile<MR>(out, ldo);
  for (int64_t g = 0; g < x.groups; g++) {
    vi acc[MR][NV] = {};
    for (const int16_t* end = values + group; values < end; values += 8, pairs += 4 * NV * W)
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        vi pair[NV];
#pragma GCC unroll 4
        for (int n = 0; n < NV; n++) {
          pair[n] = load<vi>(pairs + (i * NV + n) * W);
          pin(pair[n]);
        }
#pragma GCC unroll 6
        for (int m = 0; m < MR; m++) {
          const vi value = pair_at(values + m * x.in + 2 * i);
#pragma GCC unroll 4
          for (int n = 0; n < NV; n++) add_dot_pairs(acc[m][n], pair[n], value);
        }
      }
#pragma GCC unroll 6
    for (int m = 0; m < MR; m++) {
      const float scale = x.scales[m * x.groups + g];
#pragma GCC unroll 4
      for (int n = 0; n < NV; n++)
        total[m][n] = fma(to_float(acc[m][n]), loadf(w.scales + (g * NV + n) * W) * scale, total[m][n]);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
    for (int n = 0; n < NV; n++) storef_n(out + m * ldo + n * W, total[m][n], columns - n * W);
}

template <int NV>
inline void strips_int16(const Awq& a, int64_t strip, const Int16Rows& x, int64_t rows, float* out) {
  if (rows <= 5) return with_count<5>(rows, [&](auto count) { few_rows_int16<count, NV>(a, strip, x, out); });
  const Unpacked<NV> w(a, strip);
  const int64_t tiles = (rows + kTileRows<NV> - 1) / kTileRows<NV>;
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t row = rows * i / tiles, count = rows * (i + 1) / tiles - row;
    with_count<kTileRows<NV>>(count, [&](auto height) {
      tile_int16<height, NV>(w, x.from(row), a.group, out + row * a.out + strip * W, a.out, a.out - strip * W);
    });
  }
}

constexpr int kStrips = W == 16 ? 4 : 2;  // in a unit of work

inline void awq_gemm_int16(Pool& pool, const Awq& a, const float* x, int64_t rows, float* out) {
  const Int16Rows fixed(pool.shared(), a, rows);
  round_rows(pool, a, x, rows, fixed);
  pool.each_range(a.strips(), kStrips, [&](int64_t first, int64_t last) {
    if (last - first == kStrips) return strips_int16<kStrips>(a, first, fixed, rows, out);
    for (int64_t strip = first; strip < last; strip++) strips_int16<1>(a, strip, fixed, rows, out);
  });
}

}  // namespace hk
