// 4-bit weights: their memory layout, and the float32 matmul.
//
// The N columns are split into strips of W. A strip holds [K / 8, W] 32-bit words; word (b, c) holds eight values of
// column c, k = 8 b + kOrder[i] in nibble i (the lowest nibble first). Even k's are in the low half and odd ones in the
// high half, so that two neighbouring k's come out as a pair of int16 (awq_int16.h). awq_bf16.h uses another order.
// Each strip has scales [K / group, W] float16 and zeros [K / group, W] uint8.
//
// w = (q − z) · s has at most 16 significant bits, so it is exact in float32 however it is computed. Here it is
// fma(q · 16^j, s · 16^-j, −z · s), which saves shifting the nibble down. Every path below computes out[m, n] as one
// chain of fma over k that starts at 0 and follows the order of the nibbles, so a row's result has the same bits
// whatever the number of rows is.
#pragma once

#include <algorithm>
#include <type_traits>

#include "pool.h"
#include "simd.h"

namespace hk {

constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

// What the inputs of a matmul are rounded to.
enum Inputs : int64_t { kFloat32Inputs = 0, kInt16Inputs = 1, kBFloat16Inputs = 2, kInt8Inputs = 3 };

struct Awq {
  const uint32_t* quants;
  const uint8_t* zeros;
  const Half* scales;
  int64_t in, out, group;
  int64_t inputs;  // an Inputs value

  int64_t strips() const { return (out + W - 1) / W; }
  int64_t groups() const { return in / group; }
  const uint32_t* words(int64_t strip, int64_t k) const { return quants + (strip * in + k) / 8 * W; }
};

// Constants for dequantizing one group of NV strips: s · 16^-j for j = 0 … 3, and −z · s.
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

// Loads the words of eight k's. A strip is too short for the hardware prefetcher, so the next strips' words are
// prefetched here.
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

// Calls f with min(count, Most) as a compile-time constant; count is at least 1.
template <int Most, class F>
inline void with_count(int64_t count, F f) {
  if constexpr (Most > 1)
    if (count < Most) return with_count<Most - 1>(count, f);
  f(std::integral_constant<int, Most>{});
}

// Matmul for few rows: weights are dequantized in registers and never stored.
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

// Dequantizes groups first … last - 1 of NV strips into [k, NV · W] floats, k in the order of the nibbles.
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

// The output lines are probably in no cache: prefetches them for writing before they are computed.
template <int MR>
inline void prefetch_tile(const float* out, int64_t ldo) {
  for (int m = 0; m < MR; m++) __builtin_prefetch(out + m * ldo, 1);
}

// out += x · w for MR rows and one part of K; the first part starts from 0 instead of the contents of out.
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

// Rows of a tile: the accumulators of NV strips take 12 of 16 registers (AVX2), or up to 24 of 32 (AVX512).
template <int NV>
constexpr int kTileRows = W == 16 || NV <= 2 ? 6 : 12 / NV;
constexpr int kDepth = 2048;  // k's dequantized at a time: as many as stay in the L2 cache

// Matmul for many rows: dequantizes NV strips once, then multiplies tiles of an equal number of rows.
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
      with_count<kTileRows<NV>>(count, [&](auto height) {
        tile<height, NV>(w, (last - g) * a.group, x + m * a.in + g * a.group, a.in, g == 0,
                         out + m * a.out + strip * W, a.out, a.out - strip * W);
      });
    }
  }
}

template <int NV>
inline void strips_of(const Awq& a, int64_t strip, const float* x, int64_t rows, float* out) {
  if (rows > 4) return many_rows<NV>(a, strip, x, rows, out);
  with_count<4>(rows, [&](auto count) { few_rows<count, NV>(a, strip, x, out); });
}

// Number of strips in a unit of work, by the number of rows; measured, see docs/log.md.
inline int64_t strips_per_unit(int64_t rows) {
  if (W == 16 || rows == 1) return 4;
  if (rows == 4 || rows == 5 || rows == 6 || rows > 8) return 2;
  return 3;
}

inline void awq_gemm_float32(Pool& pool, const Awq& a, const float* x, int64_t rows, float* out) {
  pool.each_range(a.strips(), strips_per_unit(rows), [&](int64_t first, int64_t last) {
    switch (last - first) {
      case 4: return strips_of<4>(a, first, x, rows, out);
      case 3: return strips_of<3>(a, first, x, rows, out);
      case 2: return strips_of<2>(a, first, x, rows, out);
      default: return strips_of<1>(a, first, x, rows, out);
    }
  });
}

// AutoAWQ's GEMM layout has qweight [K, N / 8] and qzeros [K / group, N / 8]; of each eight columns, column i is in
// nibble kNibble[i].
constexpr int kNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

constexpr int kPairDepth = 64;  // in the layout of awq_bf16.h, 64 bytes hold this many k's of two columns
constexpr int kPackedColumns = 128;  // packed in one pass over K: whole cache lines of the source

// The eight columns of one source word in the packed layout: [8 k's, stride] words -> [8 columns] words.
inline void pack_block(const uint32_t* from, int64_t stride, uint32_t* to) {
  typedef uint32_t Words __attribute__((vector_size(32)));
  Words shifts, words{};
  for (int c = 0; c < 8; c++) shifts[c] = 4 * kNibble[c];
#pragma GCC unroll 8
  for (int k = 0; k < 8; k++) words |= ((Words{} + from[k * stride]) >> shifts & 15) << 4 * (k % 2 * 4 + k / 2);
  std::memcpy(to, &words, sizeof words);
}

// The same in the layout of awq_bf16.h: [64 k's, stride] words -> [4 pairs of columns, 32] words of 16 bits.
inline void pack_pairs(const uint32_t* from, int64_t stride, uint16_t* to) {
  for (int k = 0; k < kPairDepth / 2; k++) {
    const uint32_t first = from[k * stride], second = from[(k + kPairDepth / 2) * stride];
    for (int pair = 0; pair < 4; pair++) {
      const uint32_t codes = (first >> 4 * pair & 0xf000f) | (second >> 4 * pair & 0xf000f) << 4;
      to[pair * 32 + k] = uint16_t(codes | codes >> 8);
    }
  }
}

// Converts AutoAWQ's layout into the packed one. The columns that fill up the last strip get scale 0.
inline void pack_awq(Pool& pool, const uint32_t* qweight, const uint32_t* qzeros, const Half* scales_in,
                     const Awq& shape, uint32_t* quants, uint8_t* zeros, Half* scales) {
  const int64_t packed = shape.out / 8, groups = shape.groups();
  const bool pairs = shape.inputs == kBFloat16Inputs;
  pool.each_range(shape.strips(), kPackedColumns / W, [&](int64_t first, int64_t last) {
    const int64_t columns = std::min<int64_t>(last * W, shape.out) - first * W;
    if (columns % W) std::memset(quants + (last - 1) * shape.in / 8 * W, 0, shape.in / 8 * W * sizeof *quants);
    for (int64_t k = 0; k < shape.in; k += pairs ? kPairDepth : 8)
      for (int64_t c = 0; c < columns; c += 8) {
        const uint32_t* from = qweight + k * packed + (first * W + c) / 8;
        uint32_t* to = quants + ((first + c / W) * shape.in + k) / 8 * W;
        if (pairs)
          pack_pairs(from, packed, reinterpret_cast<uint16_t*>(to) + c % W / 2 * 32);
        else
          pack_block(from, packed, to + c % W);
      }
    for (int64_t strip = first; strip < last; strip++)
      for (int64_t g = 0; g < groups; g++)
        for (int64_t c = strip * W; c < (strip + 1) * W; c++) {
          const int64_t at = (strip * groups + g) * W + c % W;
          const bool inside = c < shape.out;
          zeros[at] = inside ? qzeros[g * packed + c / 8] >> 4 * kNibble[c % 8] & 15 : 0;
          scales[at] = inside ? scales_in[g * shape.out + c] : Half{0};
        }
  });
}

}  // namespace hk
