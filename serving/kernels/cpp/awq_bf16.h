// The matmul of 4-bit weights with inputs and weights rounded to bfloat16, on AMX tiles; vLLM rounds the same way.
//
// A tile instruction adds 32 products for 16 columns of the weight and 16 rows of the input to float32 sums. Weights
// are scaled before they are rounded, so one sum runs over all of K. A row's sum takes the k's in the same order
// whatever else is in the tiles, so its bits do not depend on the other rows or on their number.
//
// Weights have their own layout: [strip, K / 64, 8 pairs of columns, 32 words of 16 bits]. Word i holds, the lowest
// nibble first, k = i and k = 32 + i of the even column, then of the odd one. In one group and column w = (q − z) · s
// takes only 16 values: they are rounded once into a register, from which one instruction looks up 32 weights.
// Source: Intel Architecture Instruction Set Extensions Programming Reference, chapter 3 (TDPBF16PS).
#pragma once

#include "awq_int8.h"
#include "tiles_bf16.h"

namespace hk {

#if defined(HK_AMX_BF16)

constexpr int kPieces = 8;  // the work on finished sums is spread over the next rows' tile instructions in 8 pieces
constexpr int64_t kInputBytes = 1 << 20;  // inputs of a block of rows: as many bytes as stay in the L2 cache

// NV strips at a distance of `apart`. This thread probably takes the strips `ahead` of them next; they are prefetched.
struct Strips {
  int64_t first, apart, ahead;
};

// Dequantizes one group of NV strips into tiles [k / 32, strip]; line c of a tile holds 32 k's of column c.
template <int NV>
inline void unpack_group_bf16(const Awq& a, const Strips& strips, int64_t g, uint8_t* tiles) {
  const int64_t next = strips.ahead * a.in * W / 2;
  const __m512 codes = _mm512_load_ps(kCodeValues.at);
  for (int n = 0; n < NV; n++) {
    const int64_t at = ((strips.first + n * strips.apart) * a.groups() + g) * W;
    __builtin_prefetch(a.scales + at + strips.ahead * a.groups() * W);
    __builtin_prefetch(a.zeros + at + strips.ahead * a.groups() * W);
    const vf scale = widen(a.scales + at);
    alignas(64) float scales[W], offsets[W];
    storef(scales, scale);
    storef(offsets, -(to_float(widen_bytes(a.zeros + at)) * scale));
    const int64_t start = ((strips.first + n * strips.apart) * a.in + g * a.group) * W / 2;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(a.quants) + start;
    memory_barrier();  // makes the compiler broadcast from memory, which costs nothing, instead of from a register
    const auto table = [&](int c) {  // the 16 values twice, because the lookup ignores the fifth bit of an index
      const __m512 values = _mm512_fmadd_ps(codes, _mm512_set1_ps(scales[c]), _mm512_set1_ps(offsets[c]));
      return _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(values));
    };
#pragma GCC unroll 8
    for (int c = 0; c < W; c += 2) {
      const __m512i even = table(c), odd = table(c + 1);
      for (int64_t k = 0; k < a.group; k += kPairDepth) {
        const uint8_t* line = from + (k * W + c * kPairDepth) / 2;
        __builtin_prefetch(line + next);
        const __m512i words = _mm512_loadu_si512(line);
        uint8_t* to = tiles + (k / kPairs * NV + n) * kTileBytes + c * 64;
        _mm512_store_si512(to, _mm512_permutexvar_epi16(words, even));
        _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), odd));
        to += NV * kTileBytes;
        _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), even));
        _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), odd));
      }
    }
  }
}

// Tiles 0 … 3 hold the sums (tile 2 n + m: strip n, rows from 16 m on), 4 and 5 inputs, 6 and 7 weights. Inputs come
// from the L2 cache and are loaded with a non-temporal hint, so that weights stay in the L1 cache as far as they fit.
template <int NM, int NV>
inline void multiply_bf16(const uint8_t* inputs, int64_t next_rows, const uint8_t* weights, int64_t depth) {
  memory_barrier();
  for (int64_t k = 0; k < depth; k += kPairs, inputs += kTileBytes, weights += NV * kTileBytes) {
    _tile_stream_loadd(4, inputs, 64);
    _tile_loadd(6, weights, 64);
    _tile_dpbf16ps(0, 6, 4);
    if (NM == 2) _tile_stream_loadd(5, inputs + next_rows, 64);
    if (NM == 2) _tile_dpbf16ps(1, 6, 5);
    if (NV == 2) _tile_loadd(7, weights + kTileBytes, 64);
    if (NV == 2) _tile_dpbf16ps(2, 7, 4);
    if (NM == 2 && NV == 2) _tile_dpbf16ps(3, 7, 5);
  }
}

// Dequantizes NV strips into tiles and multiplies the first rows with them. The product is one group behind, because a
// tile load would stall on data that was only just stored. Unless the tiles are kept for other rows, two groups' room
// is used in turn and never leaves the L1 cache.
template <int NM, int NV>
inline void unpack_and_multiply(const Awq& a, const Strips& strips, const BFloat16Rows& x, int64_t row, bool keep,
                                uint8_t* tiles) {
  const int64_t bytes = a.group / kPairs * NV * kTileBytes;
  const auto at = [&](int64_t g) { return tiles + (keep ? g : g % 2) * bytes; };
  unpack_group_bf16<NV>(a, strips, 0, at(0));
  for (int64_t g = 0; g < a.groups(); g++) {
    if (g + 1 < a.groups()) unpack_group_bf16<NV>(a, strips, g + 1, at(g + 1));
    multiply_bf16<NM, NV>(x.tile(row, g * a.group), x.block(), at(g), a.group);
  }
}

// Computes sums[2 n + m], [column, row]: the products of up to 16 NM rows from `row` on with strip n. The first rows
// fill the tiles of weights, which are kept if more rows follow. For these, meanwhile(0) … meanwhile(kPieces - 1)
// process the sums of the rows before, between tile instructions: each takes 16 cycles that leave vector units idle.
template <int NM, int NV, class F>
inline void sum_rows(const Awq& a, const Strips& strips, const BFloat16Rows& x, int64_t row, bool first, bool keep,
                     uint8_t* tiles, float (*sums)[16 * W], F meanwhile) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (first) {
    unpack_and_multiply<NM, NV>(a, strips, x, row, keep, tiles);
  } else {
    for (int64_t piece = 0, k = 0; piece < kPieces; piece++) {
      const int64_t end = a.in / kPairs * (piece + 1) / kPieces * kPairs;
      multiply_bf16<NM, NV>(x.tile(row, k), x.block(), tiles + k / kPairs * NV * kTileBytes, end - k);
      meanwhile(piece);
      k = end;
    }
  }
  _tile_stored(0, sums[0], 64);
  if (NM == 2) _tile_stored(1, sums[1], 64);
  if (NV == 2) _tile_stored(2, sums[2], 64);
  if (NM == 2 && NV == 2) _tile_stored(3, sums[3], 64);
  memory_barrier();
}

// Calls use(row, sums, 0) … use(row, sums, kPieces - 1) for every 32 rows of first … last - 1, with sums as above; sums
// of rows past the last, and of the second strip when NV is 1, are uninitialized. The calls come one block of 32 rows
// late. Before them comes claim(row) for every 16 rows, which prefetches the output for writing: its lines may be in
// another core's cache.
template <int NV, class C, class F>
inline void each_sum(const Awq& a, const Strips& strips, const BFloat16Rows& x, int64_t first, int64_t last, C claim,
                     F use) {
  alignas(64) float buffers[2][4][16 * W];
  uint8_t* tiles = reinterpret_cast<uint8_t*>(scratch(a.in * NV * W / 2));
  configure_tiles(16);
  int64_t at = 0;
  for (int64_t row = first; row < last; row += 32, at++) {
    const bool two = last - row > 16, more = last - row > 32;
    claim(row);
    if (two) claim(row + 16);
    const auto before = [&](int piece) { use(row - 32, buffers[(at + 1) % 2], piece); };
    if (two)
      sum_rows<2, NV>(a, strips, x, row, row == first, more, tiles, buffers[at % 2], before);
    else
      sum_rows<1, NV>(a, strips, x, row, row == first, more, tiles, buffers[at % 2], before);
  }
  _tile_release();
  for (int piece = 0; piece < kPieces; piece++) use(first + 32 * (at - 1), buffers[(at + 1) % 2], piece);
}

// The output of a matmul, [rows, columns]: overwritten, or added to.
struct Out {
  float* data;
  bool add;
};

// Writes or adds 16 columns × 16 rows of sums to `out`, cut off at `rows` and `columns`.
template <bool add>
inline void store_sums(float* sums, int64_t rows, int64_t columns, float* out, int64_t ldo) {
  __m512 lines[16];
#pragma GCC unroll 16
  for (int c = 0; c < 16; c++) lines[c] = _mm512_load_ps(sums + c * W);
  transpose(lines);
  if (rows >= 16 && columns >= W) {
#pragma GCC unroll 16
    for (int m = 0; m < 16; m++)
      _mm512_storeu_ps(out + m * ldo, add ? _mm512_loadu_ps(out + m * ldo) + lines[m] : lines[m]);
    return;
  }
  for (int m = 0; m < 16; m++) _mm512_store_ps(sums + m * W, lines[m]);
  for (int64_t m = 0; m < std::min<int64_t>(16, rows); m++) {
    const vf line = loadf(sums + m * W);
    storef_n(out + m * ldo, add ? loadf_n(out + m * ldo, columns) + line : line, columns);
  }
}

template <int NV>
void strips_bf16(const Awq& a, int64_t strip, const BFloat16Rows& x, int64_t first, int64_t last,
                 const Out& out) {
  void (*store)(float*, int64_t, int64_t, float*, int64_t) = store_sums<false>;
  if (out.add) store = store_sums<true>;
  const auto claim = [&](int64_t row) {
    for (int64_t m = row; m < std::min(row + 16, last); m++)
      for (int n = 0; n < NV; n++) __builtin_prefetch(out.data + m * a.out + (strip + n) * W, 1);
  };
  each_sum<NV>(a, {strip, 1, NV}, x, first, last, claim, [&](int64_t row, float (*sums)[16 * W], int piece) {
    const int64_t tile = piece / 2, column = (strip + tile / 2) * W;
    row += tile % 2 * 16;
    if (piece % 2 || tile / 2 >= NV || row >= last) return;
    store(sums[tile], last - row, a.out - column, out.data + row * a.out + column, a.out);
  });
}

// Calls f(first, last, unit) for every unit 0 … units - 1 of every block of rows whose inputs fit the L2 cache.
template <class F>
inline void each_block(Pool& pool, int64_t rows, int64_t in, int64_t units, F f) {
  const int64_t blocks = (rows * in * 2 + kInputBytes - 1) / kInputBytes;
  const int64_t height = ((rows + blocks - 1) / blocks + 31) / 32 * 32;
  pool.each((rows + height - 1) / height * units, [&](int64_t unit) {
    const int64_t first = unit / units * height;
    f(first, std::min(rows, first + height), unit % units);
  });
}

inline void multiply_rows(Pool& pool, const Awq& a, const BFloat16Rows& x, int64_t rows, const Out& out) {
  each_block(pool, rows, a.in, (a.strips() + 1) / 2, [&](int64_t first, int64_t last, int64_t pair) {
    if (2 * pair + 1 < a.strips()) return strips_bf16<2>(a, 2 * pair, x, first, last, out);
    strips_bf16<1>(a, 2 * pair, x, first, last, out);
  });
}

// out = silu(gate) · up, rounded to bfloat16; gate is the first half of the columns of `a`, up the second. a.out / 2 is
// a multiple of 32.
inline void gate_and_up(Pool& pool, const Awq& a, const BFloat16Rows& x, int64_t rows, const BFloat16Rows& out) {
  const int64_t strips = a.strips() / 2;
  each_block(pool, rows, a.in, strips, [&](int64_t first, int64_t last, int64_t strip) {
    const auto half = [&](int64_t row) {
      return out.tile(row, strip / 2 * kPairs) + strip % 2 * (kTileBytes / 2);
    };
    const auto claim = [&](int64_t row) {
      for (int i = 0; i < kTileBytes / 2; i += 64) __builtin_prefetch(half(row) + i, 1);
    };
    each_sum<2>(a, {strip, strips, 1}, x, first, last, claim, [&](int64_t row, float (*sums)[16 * W], int piece) {
      const int m = piece / 4;
      row += 16 * m;
      if (row >= last) return;
      uint8_t* tile = half(row);
      for (int c = piece % 4 * 4; c < piece % 4 * 4 + 4; c += 2) {
        const vf even = silu(loadf(sums[m] + c * W)) * loadf(sums[2 + m] + c * W);
        const vf odd = silu(loadf(sums[m] + (c + 1) * W)) * loadf(sums[2 + m] + (c + 1) * W);
        _mm512_store_si512(tile + c / 2 * 64, interleave((__m512)even, (__m512)odd));
      }
    });
  });
}

inline void awq_gemm_bf16(Pool& pool, const Awq& a, const float* x, int64_t rows, float* out) {
  const BFloat16Rows halves{reinterpret_cast<uint8_t*>(pool.shared()), a.in};
  round_rows(pool, x, rows, halves);
  multiply_rows(pool, a, halves, rows, {out, false});
}

#endif

// pool.shared() must hold Int16Rows::floats(a, rows).
inline void awq_gemm(Pool& pool, const Awq& a, const float* x, int64_t rows, float* out) {
  if (rows == 0) return;
#if defined(HK_AMX_BF16)
  if (a.inputs == kBFloat16Inputs) return awq_gemm_bf16(pool, a, x, rows, out);
#endif
  if (a.inputs == kFloat32Inputs) return awq_gemm_float32(pool, a, x, rows, out);
  if (a.inputs == kInt8Inputs) return awq_gemm_int8(pool, a, x, rows, out);
#if defined(HK_AMX)
  if (rows >= kFewestRows && amx_fits(a)) return awq_gemm_amx(pool, a, x, rows, out);
#endif
  awq_gemm_int16(pool, a, x, rows, out);
}

}  // namespace hk
