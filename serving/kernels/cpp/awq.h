// 4-bit weights: their layout, and the matmuls over them.
//
// Columns lie in strips of W. A strip is [K / 8, W] words; word (b, c) holds the values of column c for
// k = 8 b + kOrder[i], i = 0 … 7, lowest nibble first: even k's in the low half, odd ones in the high half,
// so that neighbours come out together as a pair of int16 (awq_int16.h); awq_bf16.h has another order.
// scales [K / group, W] are float16, zeros [K / group, W] bytes.
//
// w = (q − z) · s has at most 16 bits, so it is exact in float32 however it is computed: here as
// fma(q · 16^j, s · 16^-j, −z · s), which spares the shift. out[m, n] is one chain of fma over k, started
// at 0 and in the order of the nibbles, in every path below. So a row's result has the same bits whatever
// M is.
#pragma once

#include <algorithm>

#include "pool.h"
#include "simd.h"

namespace hk {

constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

// What the inputs of a matmul are rounded to.
enum Inputs : int64_t { kWhole = 0, kInt16Inputs = 1, kBFloat16Inputs = 2 };

struct Awq {
  const uint32_t* quants;
  const uint8_t* zeros;
  const Half* scales;
  int64_t in, out, group;
  int64_t inputs;  // of Inputs

  int64_t strips() const { return (out + W - 1) / W; }
  int64_t groups() const { return in / group; }
  const uint32_t* words(int64_t strip, int64_t k) const { return quants + (strip * in + k) / 8 * W; }
};

// For NV strips and one group of k: s · 16^-j for j = 0 … 3, and −z · s.
template <int NV>
struct Group {
  vf scale[NV][4], offset[NV];

  Group(const Awq& a, int64_t strip, int64_t group) {
    for (int n = 0; n < NV; n++) {
      int64_t at = ((strip + n) * a.groups() + group) * W;
      vf s = widen(a.scales + at);
      for (int j = 0; j < 4; j++) scale[n][j] = s * (1.0f / (1 << 4 * j));
      offset[n] = -(to_float(widen_bytes(a.zeros + at)) * s);
    }
  }
};

// One block of words. A strip is too short for the processor to foresee the next: that one is fetched here.
template <int NV>
inline vi load_words(const Awq& a, int64_t strip, int64_t k) {
  __builtin_prefetch(a.words(strip + NV, k));
  return load<vi>(a.words(strip, k));
}

// Calls f(i, n, w) for the nibbles i = 0 … 7 of one block of words and NV strips, i outermost.
template <int NV, class F>
inline __attribute__((always_inline)) void dequantize8(const Awq& a, const Group<NV>& group, int64_t strip,
                                                       int64_t k, F f) {
  vi words[NV];
#pragma GCC unroll 4
  for (int n = 0; n < NV; n++) words[n] = load_words<NV>(a, strip + n, k);
#pragma GCC unroll 2
  for (int high = 0; high < 2; high++) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
#pragma GCC unroll 4
      for (int n = 0; n < NV; n++) {
        vf w = fma(to_float(words[n] & (15 << 4 * j)), group.scale[n][j], group.offset[n]);
        pin(w);
        f(4 * high + j, n, w);
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < NV; n++) words[n] = (vi)((vu)words[n] >> 16);
  }
}

// A few rows: dequantized in registers, never stored.
template <int MR, int NV>
void few_rows(const Awq& a, int64_t strip, const float* x, float* out) {
  vf acc[MR][NV] = {};
  for (int64_t g = 0; g < a.groups(); g++) {
    const Group<NV> group(a, strip, g);
    for (int64_t k = g * a.group; k < (g + 1) * a.group; k += 8)
      dequantize8<NV>(a, group, strip, k, [&](int i, int n, vf w) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++) acc[m][n] = fma(w, splat(x[m * a.in + k + kOrder[i]]), acc[m][n]);
      });
  }
  for (int m = 0; m < MR; m++)
    for (int n = 0; n < NV; n++)
      storef_n(out + m * a.out + (strip + n) * W, acc[m][n], a.out - (strip + n) * W);
}

// The weights of groups first … last - 1 and NV strips as [k, NV · W] floats, k in the order of the nibbles.
template <int NV>
void dequantize(const Awq& a, int64_t strip, int64_t first, int64_t last, float* w_out) {
  for (int64_t g = first; g < last; g++) {
    const Group<NV> group(a, strip, g);
    for (int64_t k = g * a.group; k < (g + 1) * a.group; k += 8) {
      float* to = w_out + (k - first * a.group) * NV * W;
      dequantize8<NV>(a, group, strip, k, [&](int i, int n, vf w) __attribute__((always_inline)) {
        storef(to + (i * NV + n) * W, w);
      });
    }
  }
}

// Results go where nothing has been lately: ask for the lines before the work that fills them.
template <int MR>
inline void prefetch_tile(const float* out, int64_t ldo) {
  for (int m = 0; m < MR; m++) __builtin_prefetch(out + m * ldo, 1);
}

// out += x · w for MR rows, going on from what out holds (from 0 when it is the first of K's parts).
template <int MR, int NV>
void tile(const float* w, int64_t depth, const float* x, int64_t ldx, bool first, float* out, int64_t ldo,
          int64_t columns) {
  vf acc[MR][NV];
  prefetch_tile<MR>(out, ldo);
  for (int m = 0; m < MR; m++)
    for (int n = 0; n < NV; n++)
      acc[m][n] = first ? vf{} : loadf_n(out + m * ldo + n * W, columns - n * W);
  for (int64_t k = 0; k < depth; k += 8)
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      vf row[NV];
#pragma GCC unroll 4
      for (int n = 0; n < NV; n++) {
        row[n] = loadf(w + ((k + i) * NV + n) * W);
        pin(row[n]);
      }
#pragma GCC unroll 6
      for (int m = 0; m < MR; m++) {
        const vf value = splat(x[m * ldx + k + kOrder[i]]);
#pragma GCC unroll 4
        for (int n = 0; n < NV; n++) acc[m][n] = fma(row[n], value, acc[m][n]);
      }
    }
  for (int m = 0; m < MR; m++)
    for (int n = 0; n < NV; n++) storef_n(out + m * ldo + n * W, acc[m][n], columns - n * W);
}

// Rows of a tile: with NV strips its accumulators take 12 of 16 registers, or up to 24 of 32.
template <int NV>
constexpr int kTileRows = W == 16 || NV <= 2 ? 6 : 12 / NV;
constexpr int kDepth = 2048;  // k's dequantized at a time: they stay in the second-level cache

template <int NV, int MR = kTileRows<NV>>
inline void tile_of(int64_t rows, const float* w, int64_t depth, const float* x, int64_t ldx, bool first,
                    float* out, int64_t ldo, int64_t columns) {
  if constexpr (MR > 1)
    if (rows < MR) return tile_of<NV, MR - 1>(rows, w, depth, x, ldx, first, out, ldo, columns);
  tile<MR, NV>(w, depth, x, ldx, first, out, ldo, columns);
}

// Many rows and NV strips: dequantize once, then multiply tile by tile, rows split evenly.
template <int NV>
void many_rows(const Awq& a, int64_t strip, const float* x, int64_t rows, float* out) {
  const int64_t tiles = (rows + kTileRows<NV> - 1) / kTileRows<NV>, groups = a.groups();
  const int64_t parts = (a.in + kDepth - 1) / kDepth;
  float* w = scratch((groups / parts + 1) * a.group * NV * W);
  for (int64_t part = 0; part < parts; part++) {
    const int64_t g = groups * part / parts, last = groups * (part + 1) / parts;
    dequantize<NV>(a, strip, g, last, w);
    for (int64_t i = 0; i < tiles; i++) {
      const int64_t m = rows * i / tiles, count = rows * (i + 1) / tiles - m;
      tile_of<NV>(count, w, (last - g) * a.group, x + m * a.in + g * a.group, a.in, g == 0,
                  out + m * a.out + strip * W, a.out, a.out - strip * W);
    }
  }
}

template <int NV>
inline void strips_of(const Awq& a, int64_t strip, const float* x, int64_t rows, float* out) {
  switch (rows) {
    case 1: return few_rows<1, NV>(a, strip, x, out);
    case 2: return few_rows<2, NV>(a, strip, x, out);
    case 3: return few_rows<3, NV>(a, strip, x, out);
    case 4: return few_rows<4, NV>(a, strip, x, out);
    default: return many_rows<NV>(a, strip, x, rows, out);
  }
}

// Strips taken together, by the number of rows; measured, see docs/log.md.
inline int64_t strips_together(int64_t rows) {
  if (W == 16 || rows == 1) return 4;
  if (rows == 4 || rows == 5 || rows == 6 || rows > 8) return 2;
  return 3;
}

inline void awq_gemm_float32(Pool& pool, const Awq& a, const float* x, int64_t rows, float* out) {
  pool.each_range(a.strips(), strips_together(rows), [&](int64_t first, int64_t last) {
    switch (last - first) {
      case 4: return strips_of<4>(a, first, x, rows, out);
      case 3: return strips_of<3>(a, first, x, rows, out);
      case 2: return strips_of<2>(a, first, x, rows, out);
      default: return strips_of<1>(a, first, x, rows, out);
    }
  });
}

// From AutoAWQ's layout: qweight [K, N / 8] and qzeros [K / group, N / 8], column i of eight in nibble
// kNibble[i]. Columns past N become zeros with scale 0.
constexpr int kNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

constexpr int kCodes = 64;  // k's of two columns that share 64 bytes in the layout of awq_bf16.h

inline void pack_code(const Awq& a, int64_t strip, int64_t k, int64_t column, uint32_t code, uint32_t* quants) {
  if (a.inputs == kBFloat16Inputs) {
    uint16_t* words = reinterpret_cast<uint16_t*>(quants) + ((strip * a.in + k) / kCodes * W + column) / 2 * 32;
    words[k % 32] |= uint16_t(code << 4 * (column % 2 * 2 + k % kCodes / 32));
  } else {
    quants[(strip * a.in + k) / 8 * W + column] |= code << 4 * (k % 2 * 4 + k % 8 / 2);
  }
}

inline void pack_awq(Pool& pool, const uint32_t* qweight, const uint32_t* qzeros, const Half* scales_in,
                     const Awq& shape, uint32_t* quants, uint8_t* zeros, Half* scales) {
  const int64_t packed = shape.out / 8, groups = shape.groups();
  pool.each(shape.strips(), [&](int64_t strip) {
    const int64_t first = strip * W, columns = std::min<int64_t>(W, shape.out - first);
    std::memset(quants + strip * shape.in / 8 * W, 0, shape.in / 8 * W * sizeof *quants);
    for (int64_t k = 0; k < shape.in; k++)
      for (int64_t c = 0; c < columns; c++)
        pack_code(shape, strip, k, c, qweight[k * packed + (first + c) / 8] >> 4 * kNibble[c % 8] & 15, quants);
    for (int64_t g = 0; g < groups; g++)
      for (int64_t c = 0; c < W; c++) {
        const int64_t at = (strip * groups + g) * W + c;
        const bool inside = c < columns;
        zeros[at] = inside ? qzeros[g * packed + (first + c) / 8] >> 4 * kNibble[c % 8] & 15 : 0;
        scales[at] = inside ? scales_in[g * shape.out + first + c] : Half{0};
      }
  });
}

}  // namespace hk
