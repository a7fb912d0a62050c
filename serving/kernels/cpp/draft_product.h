// The matmul of the draft model, on one thread.
//
// With AMX, inputs and weights are rounded to int8, each row with its own scale, and the weights are stored as tiles:
// all layers fit the L2 cache. Otherwise weights are float16, row by row, and x is float32. The rounding affects drafts
// only, never the output of the large model.
// Source: Intel Architecture Instruction Set Extensions Programming Reference (TDPBSSD).
#pragma once

#include <algorithm>
#include <vector>

#include "awq_amx.h"
#include "dense.h"

namespace hk {

// Each forward pass of the large model evicts the draft model from the caches, and the hardware prefetcher stops at
// page boundaries. Weights are stored in the order of their use, so prefetching at a fixed distance also covers the
// next matrix. Prefetching what is in a cache already costs a fifth of a draft's time, so it is done once a call.
constexpr int64_t kAhead = 16 << 10;  // bytes

inline void prefetch(const void* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(data) + at, 0, 2);
}

inline void prefetch_ahead(bool cold, const void* weight, int64_t bytes) {
  if (cold) prefetch(static_cast<const char*>(weight) + kAhead, bytes);
}

inline void product_by_rows(bool cold, const Half* weight, int64_t out, int64_t in, const float* x, int64_t rows,
                            float* y) {
  constexpr int kMaxRows = W == 16 ? 4 : 3;  // as far as dot_tile is unrolled
  for (int64_t n = 0; n < out; n += kWeightRows) {
    const Half* w[kWeightRows];
    for (int64_t i = 0; i < kWeightRows; i++) w[i] = weight + (n + i) * in;
    prefetch_ahead(cold, w[0], kWeightRows * in * sizeof(Half));
    dot_rows<kMaxRows>(w, x, rows, in, y + n, out);
  }
}

#if defined(HK_AMX)

inline int64_t in_steps(int64_t in) { return (in + kStep - 1) / kStep * kStep; }

// Rounds x to int8, padded with 0; returns the scale, x ≈ scale · bytes.
inline float round_to_bytes(const float* x, int64_t count, int8_t* bytes) {
  vf highest = splat(1e-30f);
  for (int64_t i = 0; i < count; i += W) highest = max(highest, max(loadf(x + i), -loadf(x + i)));
  const float scale = largest(highest) / 127.0f, inverse = 1.0f / scale;
  for (int64_t i = 0; i < count; i += W)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + i),
                     _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32((__m512)(loadf(x + i) * inverse))));
  for (int64_t i = count; i < in_steps(count); i += W) std::memset(bytes + i, 0, W);
  return scale;
}

// Converts weights [out, in] to tiles [out / 16, in / 64] whose line r has inputs 4 r … 4 r + 3 of each output,
// followed by a scale for each output. Returns the bytes written.
inline int64_t arrange_in_tiles(const Half* weight, int64_t out, int64_t in, int8_t* tiles) {
  const int64_t padded = in_steps(in);
  float* scales = reinterpret_cast<float*>(tiles + out * padded);
  std::vector<float> row(in);
  std::vector<int8_t> bytes(padded);
  for (int64_t n = 0; n < out; n++) {
    for (int64_t k = 0; k < in; k += W) storef(&row[k], widen(weight + n * in + k));
    scales[n] = round_to_bytes(row.data(), in, bytes.data());
    int8_t* to = tiles + n / 16 * 16 * padded + n % 16 * 4;
    for (int64_t k = 0; k < padded; k++) to[k / kStep * kTileBytes + k % kStep / 4 * 64 + k % 4] = bytes[k];
  }
  return out * padded + out * sizeof(float);
}

// Multiplies at most 16 rows (as many as tiles are configured for) with S strips of 16 outputs into sums [rows, 64].
// Tiles 0 … 3 hold the sums, 4 the rows of x, 6 and 7 weights.
template <int S>
inline void sum_strips(const int8_t* tiles, int64_t padded, const int8_t* x, int32_t* sums) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (S == 4) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < padded; k += kStep) {
    const int8_t* tile = tiles + k * 16;
    _tile_loadd(4, x + k, padded);
    _tile_loadd(6, tile, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, tile + 16 * padded, 64);
    _tile_dpbssd(1, 4, 7);
    if constexpr (S == 4) {
      _tile_loadd(6, tile + 32 * padded, 64);
      _tile_dpbssd(2, 4, 6);
      _tile_loadd(7, tile + 48 * padded, 64);
      _tile_dpbssd(3, 4, 7);
    }
  }
  _tile_stored(0, sums, 256);
  _tile_stored(1, sums + 16, 256);
  if constexpr (S == 4) {
    _tile_stored(2, sums + 32, 256);
    _tile_stored(3, sums + 48, 256);
  }
  memory_barrier();
}

inline void product_in_tiles(bool cold, const int8_t* tiles, int64_t out, int64_t in, const float* x, int64_t rows,
                             float* y) {
  const int64_t padded = in_steps(in);
  const float* scales = reinterpret_cast<const float*>(tiles + out * padded);
  const int64_t num_scales = (rows + 15) / 16 * 16;  // rounded up so that the tiles behind start at a cache line
  float* x_scales = scratch(num_scales + rows * padded / 4);
  int8_t* bytes = reinterpret_cast<int8_t*>(x_scales + num_scales);
  for (int64_t m = 0; m < rows; m++) x_scales[m] = round_to_bytes(x + m * in, in, bytes + m * padded);
  alignas(64) int32_t sums[16 * 64];
  memory_barrier();
  for (int64_t row = 0, height; row < rows; row += height) {
    height = rows - row < 16 ? rows - row : (rows - row) / 16 * 16;
    const int64_t block = std::min<int64_t>(height, 16);
    configure_tiles(block);
    for (int64_t n = 0, strips; n < out; n += strips * 16) {
      strips = n + 64 <= out ? 4 : 2;
      prefetch_ahead(cold && row == 0, tiles + n * padded, strips * 16 * padded);
      for (int64_t m = row; m < row + height; m += 16) {
        (strips == 4 ? sum_strips<4> : sum_strips<2>)(tiles + n * padded, padded, bytes + m * padded, sums);
        for (int64_t i = 0; i < block; i++)
          for (int64_t j = 0; j < strips * 16; j += W) {
            const vf wide = (vf)_mm512_cvtepi32_ps(_mm512_load_si512(sums + i * 64 + j));
            storef(y + (m + i) * out + n + j, wide * (loadf(scales + n + j) * x_scales[m + i]));
          }
      }
    }
  }
  _tile_release();
}

#endif

// Converts weights [out, in] to the layout that draft_product reads. Returns the bytes written, at most
// (2 in + 68) · out.
inline int64_t prepare_weights(const Half* weight, int64_t out, int64_t in, void* to) {
#if defined(HK_AMX)
  if (amx_allowed()) return arrange_in_tiles(weight, out, in, static_cast<int8_t*>(to));
#endif
  std::memcpy(to, weight, out * in * sizeof(Half));
  return out * in * sizeof(Half);
}

// y = x · weightᵀ, [rows, out]; out and in are multiples of 32. `cold`: the weights are in no cache of the CPU.
inline void draft_product(bool cold, const void* weight, int64_t out, int64_t in, const float* x, int64_t rows,
                          float* y) {
#if defined(HK_AMX)
  if (amx_allowed()) return product_in_tiles(cold, static_cast<const int8_t*>(weight), out, in, x, rows, y);
#endif
  product_by_rows(cold, static_cast<const Half*>(weight), out, in, x, rows, y);
}

}  // namespace hk
