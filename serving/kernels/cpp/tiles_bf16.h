// Matrices as bfloat16 tiles for AMX, which multiplies a 16 × 32 tile by a 32 × 16 tile in one instruction.
//
// The second factor's tiles hold pairs: line r has k = 2 r and 2 r + 1 of each of 16 columns, side by side.
// Source: Intel Architecture Instruction Set Extensions Programming Reference, chapter 3 (TDPBF16PS).
#pragma once

#include "awq_amx.h"
#include "elementwise.h"

#if defined(HK_AMX) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define HK_AMX_BF16
#endif

// HK_EMULATE_BF16: the code for dot products without the instruction, for tests; it needs vectors of 512 bits.
#if !defined(HK_AMX_BF16) && ((defined(HK_AVX512) && defined(__AVX512BF16__)) || defined(HK_EMULATE_BF16))
#define HK_BF16_DOTS
#endif

namespace hk {

#if defined(HK_AMX_BF16)

constexpr int kPairs = 32;  // k's of one tile instruction

struct CodeValues {
  alignas(64) float at[16];
  constexpr CodeValues() : at() {
    for (int i = 0; i < 16; i++) at[i] = float(i);
  }
};
constexpr CodeValues kCodeValues;

// rows[i][j] → rows[j][i], 32 bits each.
inline void transpose(__m512 (&rows)[16]) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      const __m512d low = _mm512_castps_pd(t[i + j]), high = _mm512_castps_pd(t[i + 2 + j]);
      rows[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      rows[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {  // the 4 × 4 blocks are transposed by now; these steps move them to their places
    t[j] = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0x88);
    t[4 + j] = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0x88);
    t[8 + j] = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0xdd);
    t[12 + j] = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0xdd);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    rows[j] = _mm512_shuffle_f32x4(t[j], t[4 + j], 0x88);
    rows[8 + j] = _mm512_shuffle_f32x4(t[j], t[4 + j], 0xdd);
    rows[4 + j] = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0x88);
    rows[12 + j] = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0xdd);
  }
}

// Inputs rounded to bfloat16: one tile for every 16 rows and 32 k's; line r holds k = 2 r and 2 r + 1 of each row.
struct BFloat16Rows {
  uint8_t* tiles;
  int64_t in;
  uint8_t* tile(int64_t row, int64_t k) const { return tiles + (row / 16 * (in / kPairs) + k / kPairs) * kTileBytes; }
  int64_t block() const { return in / kPairs * kTileBytes; }  // bytes of 16 rows
};

// Writes 16 pairs of one row to their places in a tile.
inline void scatter_line(__m512i pairs, uint8_t* tile, int64_t row) {
  const __m512i lines = _mm512_mullo_epi32(_mm512_cvttps_epi32(_mm512_load_ps(kCodeValues.at)), _mm512_set1_epi32(64));
  _mm512_i32scatter_epi32(tile + row % 16 * 4, lines, pairs, 1);
}

inline void round_row(const float* x, uint8_t* tile, int64_t row) {
  scatter_line((__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)), tile, row);
}

// Rounds up to 16 rows of x, [rows, in], into the tiles of one block of rows.
inline void round_block(const float* x, int64_t rows, int64_t in, uint8_t* tiles) {
  for (int64_t k = 0; k < in; k += kPairs, tiles += kTileBytes) {
    __m512 lines[16];
#pragma GCC unroll 16
    for (int m = 0; m < 16; m++) {
      const float* from = x + std::min<int64_t>(m, rows - 1) * in + k;  // padded with copies of the last row
      lines[m] = (__m512)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
    }
    transpose(lines);
    for (int r = 0; r < 16; r++) _mm512_store_ps(tiles + r * 64, lines[r]);
  }
}

inline void round_rows(Pool& pool, const float* x, int64_t rows, const BFloat16Rows& halves) {
  pool.each((rows + 15) / 16, [&](int64_t block) {
    const int64_t row = 16 * block;
    round_block(x + row * halves.in, rows - row, halves.in, halves.tile(row, 0));
  });
}

// The RMS norm of each row, rounded to bfloat16.
inline void norm_rows(Pool& pool, const float* x, const float* weight, float eps, int64_t rows,
                      const BFloat16Rows& halves) {
  const int64_t width = halves.in;
  pool.each((rows + 15) / 16, [&](int64_t block) {
    const int64_t first = 16 * block, count = std::min<int64_t>(16, rows - first);
    float* normed = scratch(16 * width);
    for (int64_t m = 0; m < count; m++) norm_row(x + (first + m) * width, weight, eps, width, normed + m * width);
    round_block(normed, count, width, halves.tile(first, 0));
  });
}

struct PairOrder {
  alignas(64) uint16_t at[32];
  constexpr PairOrder() : at() {
    for (int i = 0; i < 32; i++) at[i] = uint16_t(i / 2 + i % 2 * 16);
  }
};
constexpr PairOrder kPairOrder;

// Two neighbouring columns of 16 rows as one line of a tile.
inline __m512i interleave(__m512 even, __m512 odd) {
  const __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(odd, even);  // 16 even, then 16 odd ones
  return _mm512_permutexvar_epi16(_mm512_load_si512(kPairOrder.at), pairs);
}

#endif

}  // namespace hk
