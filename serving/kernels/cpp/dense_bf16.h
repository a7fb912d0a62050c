// The matmul of dense.h with weights in bfloat16 and inputs rounded to bfloat16, on AMX tiles or, without them, on dot
// products of pairs (VDPBF16PS); vLLM rounds the same way.
//
// On tiles, 16 rows of a weight [N, K] by 32 k's are a tile as they lie in the checkpoint's memory, so weights have no second copy
// in another layout. A row's sum takes the k's in the same order whatever else is in the tiles, so its bits do not depend
// on the other rows or on their number.
// Source: Intel Architecture Instruction Set Extensions Programming Reference, chapter 3 (TDPBF16PS); Intel 64 and IA-32
// Architectures Software Developer's Manual, volume 2 (VDPBF16PS).
#pragma once

#include "awq_bf16.h"
#include "dense.h"

namespace hk {

// Whether inputs are rounded to bfloat16: as those of 4-bit matmuls with AMX, beside int8 inputs without it.
inline bool rounds_inputs(const Dense& d) {
#if defined(HK_AMX_BF16)
  return d.inputs == kBFloat16Inputs;
#elif defined(HK_BF16_DOTS)
  return d.inputs == kInt8Inputs;
#else
  return false;
#endif
}

// What dense_gemm needs in the pool's shared buffer.
inline int64_t dense_floats(const Dense& d, int64_t rows) {
  return rounds_inputs(d) ? (rows + 15) / 16 * 16 * d.in / 2 : 0;
}

#if defined(HK_AMX_BF16)

// Weights so many bytes ahead in their rows are prefetched, to the L2 cache: rows may be a power of two apart.
constexpr int64_t kWeightsAhead = 512;

// Computes sums[2 n + m], [column, row]: the products of 16 NM rows from `row` on with 16 rows of weights from 16 n on.
template <int NM, int NV>
inline void sum_rows(const uint8_t* weights, int64_t stride, const BFloat16Rows& x, int64_t row, bool first,
                     float (*sums)[16 * W]) {
  const uint8_t* inputs = x.tile(row, 0);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  memory_barrier();
  for (int64_t k = 0; k < x.in; k += kPairs, inputs += kTileBytes, weights += 2 * kPairs) {
    if (first)
      for (int i = 0; i < 16 * NV; i++) __builtin_prefetch(weights + i * stride + kWeightsAhead, 0, 2);
    _tile_stream_loadd(4, inputs, 64);
    _tile_loadd(6, weights, stride);
    _tile_dpbf16ps(0, 6, 4);
    if (NM == 2) _tile_stream_loadd(5, inputs + x.block(), 64);
    if (NM == 2) _tile_dpbf16ps(1, 6, 5);
    if (NV == 2) _tile_loadd(7, weights + 16 * stride, stride);
    if (NV == 2) _tile_dpbf16ps(2, 7, 4);
    if (NM == 2 && NV == 2) _tile_dpbf16ps(3, 7, 5);
  }
  _tile_stored(0, sums[0], 64);
  if (NM == 2) _tile_stored(1, sums[1], 64);
  if (NV == 2) _tile_stored(2, sums[2], 64);
  if (NM == 2 && NV == 2) _tile_stored(3, sums[3], 64);
  memory_barrier();
}

// Multiplies rows first … last - 1 with 16 NV rows of weights, which give the output's columns from `column` on.
template <int NV>
void columns_bf16(const Dense& d, int64_t column, const BFloat16Rows& x, int64_t first, int64_t last, float* out,
                  int64_t ldo) {
  alignas(64) float sums[4][16 * W];
  const int64_t stride = 2 * d.in;
  const uint8_t* weights = static_cast<const uint8_t*>(d.data) + column * stride;
  configure_tiles(16);
  for (int64_t row = first; row < last; row += 32) {
    const bool two = last - row > 16;
    if (two)
      sum_rows<2, NV>(weights, stride, x, row, row == first, sums);
    else
      sum_rows<1, NV>(weights, stride, x, row, row == first, sums);
    for (int n = 0; n < NV; n++)
      for (int m = 0; m < 1 + two; m++)
        store_sums<false>(sums[2 * n + m], last - row - 16 * m, W, out + (row + 16 * m) * ldo + column + 16 * n, ldo);
  }
  _tile_release();
}

// Rounds the inputs of weights like `d` into pool.shared(), which must hold dense_floats(d, rows).
inline void round_inputs(Pool& pool, const Dense& d, const float* x, int64_t rows) {
  round_rows(pool, x, rows, {reinterpret_cast<uint8_t*>(pool.shared()), d.in});
}

inline void multiply_rounded(Pool& pool, const Dense& d, int64_t rows, float* out, int64_t ldo) {
  const BFloat16Rows halves{reinterpret_cast<uint8_t*>(pool.shared()), d.in};
  each_block(pool, rows, d.in, (d.out + 31) / 32, [&](int64_t first, int64_t last, int64_t pair) {
    if (d.out - 32 * pair > 16) return columns_bf16<2>(d, 32 * pair, halves, first, last, out, ldo);
    columns_bf16<1>(d, 32 * pair, halves, first, last, out, ldo);
  });
}

#elif defined(HK_BF16_DOTS)

inline void round_inputs(Pool& pool, const Dense& d, const float* x, int64_t rows) {
  BFloat16* halves = reinterpret_cast<BFloat16*>(pool.shared());
  pool.each_range(rows * d.in, 8 * 1024, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += W) round_to_bfloat16(loadf(x + i), halves + i);
  });
}

inline void multiply_rounded(Pool& pool, const Dense& d, int64_t rows, float* out, int64_t ldo) {
  const auto *weights = static_cast<const BFloat16*>(d.data), *halves = reinterpret_cast<BFloat16*>(pool.shared());
  dense_product(pool, weights, d, halves, rows, out, ldo);
}

#else

inline void round_inputs(Pool&, const Dense&, const float*, int64_t) {}
inline void multiply_rounded(Pool&, const Dense&, int64_t, float*, int64_t) {}

#endif

// Multiplies x, or what round_inputs made of it where rounds_inputs(d).
inline void multiply_dense(Pool& pool, const Dense& d, const float* x, int64_t rows, float* out, int64_t ldo) {
  if (rounds_inputs(d)) return multiply_rounded(pool, d, rows, out, ldo);
  with_type(d.data, d.dtype, [&](auto data) { dense_product(pool, data, d, x, rows, out, ldo); });
}

// pool.shared() must hold dense_floats(d, rows).
inline void dense_gemm(Pool& pool, const Dense& d, const float* x, int64_t rows, float* out, int64_t ldo) {
  if (rounds_inputs(d)) round_inputs(pool, d, x, rows);
  multiply_dense(pool, d, x, rows, out, ldo);
}

}  // namespace hk
