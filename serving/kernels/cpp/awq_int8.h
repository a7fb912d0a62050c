// The matmul of 4-bit weights with inputs rounded to int8 group by group: half the instructions of awq_int16.h.
//
// x ≈ scale · v with |v| ≤ 127 and one scale for each row and group. Sums of q · v and of v are integers and exact, so
// Σ (q − z) · v = Σ q · v − z · Σ v is, too. Across groups out[m, n] is one chain of fma in order. A row's result
// therefore never depends on other rows, and is the same on every CPU with fma.
//
// Four products are added to a 32-bit lane at once (VPDPBUSD). Rows are multiplied in tiles of equal height; weights
// are unpacked from the words in registers by one shift and two masks for 128 weights, and never stored.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (VPDPBUSD, VPMADDUBSW).
#pragma once

#include "awq_int16.h"
#include "elementwise.h"

namespace hk {

// A lane's sum starts at the bits of 1.5 · 2^23, so that read as a float it is that number plus the sum. Groups have at
// most 512 inputs (INT8_MAX_GROUP): |Σ q · v| stays below 2^22, and the halves of Σ v fit int16.
constexpr int32_t kSumStart = 0x4b400000;
constexpr float kSumStartValue = 12582912.0f;

constexpr int kTallest = W == 16 ? 12 : 6;  // rows of a tile: with two strips, as many as there are registers for
constexpr int kFewRows = 4;                 // up to so many rows, four strips at a time keep more sums in flight
constexpr int kNarrowInputs = 32;           // inputs whose products 16 bits hold: 8 times 2 · 15 · 127
constexpr int64_t kByteInputs = 1 << 19;    // inputs of a block of tiles: as many bytes as stay in the L2 cache

// Eight k's are in the order 0 4 1 5 2 6 3 7: the low nibbles of a word's four bytes, then the high ones.

// The rounded inputs, tile by tile. A tile of h rows has values [in / 4, h] of four bytes each, in the order above,
// and for each group h scales and h negated sums, each sum as two int16 that add up to it.
struct ByteRows {
  int8_t* values;
  float* scales;
  int32_t* sums;
  int64_t in, groups, rows, tiles;

  ByteRows(float* buffer, const Awq& a, int64_t rows)
      : values(reinterpret_cast<int8_t*>(buffer)), scales(buffer + rows * a.in / 4),
        sums(reinterpret_cast<int32_t*>(scales + rows * a.groups())), in(a.in), groups(a.groups()), rows(rows),
        tiles((rows + kTallest - 1) / kTallest) {}
  int64_t first(int64_t tile) const { return rows * tile / tiles; }
};

// Rounds one group of one row; `size` is a multiple of 8, perhaps not of W. Quads go to `to`, `apart` bytes apart.
inline void round_to_bytes(const float* x, int64_t size, int8_t* to, int64_t apart, float* scale, int32_t* sum) {
  vf top = {};
  for (int64_t k = 0; k < size; k += W) {
    const vf v = loadf_n(x + k, size - k);
    top = max(top, max(v, -v));
  }
  const float highest = largest(top);
  const float inverse = highest > 0 ? 127.0f / highest : 0.0f;
  vi total = {};
  for (int64_t k = 0; k < size; k += W) {
    const vi rounded = round_to_int(loadf_n(x + k, size - k) * inverse);
    total += rounded;
    alignas(16) int8_t bytes[W];
    store_quads(bytes, rounded);
    for (int64_t i = 0; i < std::min<int64_t>(W, size - k); i += 4, to += apart) std::memcpy(to, bytes + i, 4);
  }
  const int32_t negated = -int32_t(hk::sum(to_float(total))), half = negated / 2;
  *scale = highest / 127.0f;
  *sum = int32_t(uint32_t(half) << 16 | uint16_t(negated - half));
}

// Rounds all rows; values(row, k) is the address of the inputs of one group, from k on.
template <class F>
inline void round_rows(Pool& pool, const Awq& a, const ByteRows& bytes, F values) {
  pool.each(bytes.tiles, [&](int64_t tile) {
    const int64_t first = bytes.first(tile), height = bytes.first(tile + 1) - first;
    for (int64_t m = 0; m < height; m++)
      for (int64_t g = 0; g < bytes.groups; g++) {
        const int64_t at = first * bytes.groups + g * height + m;
        round_to_bytes(values(first + m, g * a.group), a.group,
                       bytes.values + first * bytes.in + (g * a.group / 4 * height + m) * 4, height * 4,
                       bytes.scales + at, bytes.sums + at);
      }
  });
}

// Adds the products of the next eight inputs to the sums, and moves to the words of those behind them.
template <int MR, int NV>
[[gnu::always_inline]] inline void add_eight(const uint32_t** words, int64_t ahead, const int8_t* values,
                                             vi (&sums)[MR][NV]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    vi w[NV];
#pragma GCC unroll 4
    for (int n = 0; n < NV; n++) {
      const vi eight = load<vi>(words[n]);
      if (!half) __builtin_prefetch(words[n] + ahead);
      w[n] = (half ? (vi)((vu)eight >> 4) : eight) & 0x0f0f0f0f;
      pin(w[n]);
    }
#pragma GCC unroll 12
    for (int m = 0; m < MR; m++) {
      int32_t quad;
      std::memcpy(&quad, values + (half * MR + m) * 4, sizeof quad);
      const vi value = splat_int(quad);
#pragma GCC unroll 4
      for (int n = 0; n < NV; n++) add_dot_quads(sums[m][n], w[n], value);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < NV; n++) words[n] += W;
}

#if defined(HK_NARROW_SUMS)
// Adds the products of INPUTS inputs, which are summed in 16 bits first. No loop is left in it, so that the compiler
// keeps these sums in registers.
template <int MR, int NV, int INPUTS>
[[gnu::always_inline]] inline void add_narrow_block(const uint32_t** words, int64_t ahead, const int8_t* values,
                                                    vi (&acc)[MR][NV]) {
  vi narrow[MR][NV];
#pragma GCC unroll 12
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
    for (int n = 0; n < NV; n++) narrow[m][n] = vi{};
#pragma GCC unroll 4
  for (int k = 0; k < INPUTS; k += 8) add_eight<MR, NV>(words, ahead, values + k * MR, narrow);
#pragma GCC unroll 12
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
    for (int n = 0; n < NV; n++) add_narrow(acc[m][n], narrow[m][n]);
}
#endif

// Multiplies the tile of MR rows that starts at row `first` with NV strips, and prefetches the words that are `ahead`
// of those it reads.
template <int MR, int NV>
void tile_int8(const Awq& a, int64_t strip, int64_t ahead, const ByteRows& x, int64_t first, float* out) {
  const int8_t* values = x.values + first * x.in;
  const float* scale = x.scales + first * x.groups;
  const int32_t* sum = x.sums + first * x.groups;
  vf total[MR][NV] = {};
  for (int n = 0; n < NV; n++) prefetch_tile<MR>(out + first * a.out + (strip + n) * W, a.out);
  const uint32_t* words[NV];
  for (int n = 0; n < NV; n++) words[n] = a.words(strip + n, 0);
  for (int64_t g = 0; g < x.groups; g++, scale += MR, sum += MR) {
    vi zeros[NV], acc[MR][NV];
    vf scales[NV];
    load_group<NV>(a, strip, g, zeros, scales);
#pragma GCC unroll 12
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
      for (int n = 0; n < NV; n++) {
        acc[m][n] = splat_int(kSumStart);
        add_dot_pairs(acc[m][n], zeros[n], splat_int(sum[m]));
      }
    const int8_t* const end = values + a.group * MR;
#if defined(HK_NARROW_SUMS)
    for (; values + kNarrowInputs * MR <= end; values += kNarrowInputs * MR)
      add_narrow_block<MR, NV, kNarrowInputs>(words, ahead, values, acc);
    for (; values < end; values += 8 * MR) add_narrow_block<MR, NV, 8>(words, ahead, values, acc);
#else
    for (; values < end; values += 8 * MR) add_eight<MR, NV>(words, ahead, values, acc);
#endif
#pragma GCC unroll 12
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
      for (int n = 0; n < NV; n++)
        total[m][n] = fma((vf)acc[m][n] - kSumStartValue, scales[n] * scale[m], total[m][n]);
  }
#pragma GCC unroll 12
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
    for (int n = 0; n < NV; n++)
      storef_n(out + (first + m) * a.out + (strip + n) * W, total[m][n], a.out - (strip + n) * W);
}

// Multiplies the tiles first … last - 1 with NV strips.
template <int NV>
inline void strips_int8(const Awq& a, int64_t strip, const ByteRows& x, int64_t first, int64_t last, float* out) {
  for (int64_t tile = first; tile < last; tile++) {
    const int64_t row = x.first(tile), ahead = tile == first ? NV * a.in / 8 * W : 0;
    with_count<NV == 4 ? kFewRows : kTallest>(x.first(tile + 1) - row, [&](auto height) {
      tile_int8<height, NV>(a, strip, ahead, x, row, out);
    });
  }
}

inline void multiply_rows(Pool& pool, const Awq& a, const ByteRows& bytes, float* out) {
  const int64_t wide = bytes.rows <= kFewRows ? 4 : 2, units = (a.strips() + wide - 1) / wide;
  const int64_t blocks = (bytes.rows * a.in + kByteInputs - 1) / kByteInputs;
  pool.each(blocks * units, [&](int64_t unit) {
    const int64_t block = unit / units, strip = unit % units * wide, left = a.strips() - strip;
    const int64_t first = bytes.tiles * block / blocks, last = bytes.tiles * (block + 1) / blocks;
    if (wide == 4 && left >= 4) return strips_int8<4>(a, strip, bytes, first, last, out);
    if (wide == 2 && left >= 2) return strips_int8<2>(a, strip, bytes, first, last, out);
    for (int64_t i = 0; i < std::min(wide, left); i++) strips_int8<1>(a, strip + i, bytes, first, last, out);
  });
}

inline void awq_gemm_int8(Pool& pool, const Awq& a, const float* x, int64_t rows, float* out) {
  const ByteRows bytes(pool.shared(), a, rows);
  round_rows(pool, a, bytes, [&](int64_t row, int64_t k) { return x + row * a.in + k; });
  multiply_rows(pool, a, bytes, out);
}

// out = (silu(gate) · up) · w, with the bits of silu_and_mul and then awq_gemm_int8. The product is not written to
// memory. gate_up: [rows, 2 · a.in].
inline void activate_and_multiply(Pool& pool, const Awq& a, const float* gate_up, int64_t rows, float* out) {
  const ByteRows bytes(pool.shared(), a, rows);
  round_rows(pool, a, bytes, [&](int64_t row, int64_t k) {
    const float* gate = gate_up + row * 2 * a.in + k;
    float* product = scratch(a.group);
    for (int64_t i = 0; i < a.group; i += W) {
      const vf up = loadf_n(gate + a.in + i, a.group - i);
      storef_n(product + i, silu(loadf_n(gate + i, a.group - i)) * up, a.group - i);
    }
    return product;
  });
  multiply_rows(pool, a, bytes, out);
}

}  // namespace hk
