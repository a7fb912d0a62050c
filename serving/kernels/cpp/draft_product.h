// Rows of x against the weights of a draft model, on one thread.
//
// Where the CPU has AMX the weights are bfloat16 and x is rounded to it, which halves the instructions a product
// takes; otherwise weights are float16, widened on the way, and x is float32. Only guesses depend on it.
// Source: Intel Architecture Instruction Set Extensions Programming Reference (VDPBF16PS, TDPBF16PS).
#pragma once

#include <algorithm>
#include <vector>

#include "awq_bf16.h"
#include "dense.h"

namespace hk {

// Between two passes of the large model all caches have lost this one, and the processor's own prefetching stops at
// each page. All weights lie in the order of their use: asking for what comes so far behind finds the next ones too.
constexpr int64_t kAhead = 16 << 10;

inline void ask_for(const void* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(data) + at, 0, 2);
}

inline void ask_ahead(const Half* weight, int64_t count) {
  ask_for(reinterpret_cast<const char*>(weight) + kAhead, count * sizeof(Half));
}

#if defined(HK_AMX_BF16)

constexpr int64_t kFewestInTiles = 8;  // rows

// Weights as they come to weights as they are multiplied, in place.
inline void prepare_weights(Half* weights, int64_t count) {
  for (int64_t i = 0; i < count; i += W) {
    const vh rounded = (vh)_mm512_cvtneps_pbh((__m512)widen_n(weights + i, count - i));
    std::memcpy(weights + i, &rounded, std::min<int64_t>(W, count - i) * sizeof(Half));
  }
}

// MM rows of x against kTogether rows of weights.
template <int MM>
inline void dot_pairs(const Half* const* w, const uint16_t* x, int64_t in, float* out, int64_t ldo) {
  vf acc[kTogether][MM] = {};
  for (int64_t k = 0; k < in; k += kPairs) {
    __m512bh value[MM];
#pragma GCC unroll 4
    for (int m = 0; m < MM; m++) value[m] = (__m512bh)_mm512_loadu_si512(x + m * in + k);
#pragma GCC unroll 4
    for (int n = 0; n < kTogether; n++) {
      const __m512bh weight = (__m512bh)_mm512_loadu_si512(w[n] + k);
#pragma GCC unroll 4
      for (int m = 0; m < MM; m++) acc[n][m] = (vf)_mm512_dpbf16_ps((__m512)acc[n][m], weight, value[m]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < MM; m++) {
    const v4 sums = sum4(acc[0][m], acc[1][m], acc[2][m], acc[3][m]);
    std::memcpy(out + m * ldo, &sums, sizeof sums);
  }
}

template <int MM>
inline void rows_of_pairs(const Half* const* w, const uint16_t* x, int64_t rows, int64_t in, float* y, int64_t out) {
  int64_t m = 0;
  for (; m + MM <= rows; m += MM) dot_pairs<MM>(w, x + m * in, in, y + m * out, out);
  if constexpr (MM > 1)
    if (m < rows) rows_of_pairs<MM - 1>(w, x + m * in, rows - m, in, y + m * out, out);
}

inline void product_of_pairs(const Half* weight, int64_t out, int64_t in, const float* x, int64_t rows, float* y) {
  std::vector<uint16_t> rounded(rows * in);
  for (int64_t i = 0; i < rows * in; i += W) {
    const vh halves = (vh)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
    std::memcpy(&rounded[i], &halves, sizeof halves);
  }
  for (int64_t n = 0; n < out; n += kTogether) {
    const Half* w[kTogether];
    for (int64_t i = 0; i < kTogether; i++) w[i] = weight + (n + i) * in;
    ask_ahead(w[0], kTogether * in);
    rows_of_pairs<4>(w, rounded.data(), rows, in, y + n, out);
  }
}

// 16 rows by two strips of columns at a time. Tiles 0 and 1 are sums, 4 inputs, 6 and 7 weights.
inline void product_in_tiles(const Half* weight, int64_t out, int64_t in, const float* x, int64_t rows, float* y) {
  const int64_t blocks = (rows + 15) / 16;
  const Halves halves{reinterpret_cast<uint8_t*>(scratch(blocks * in * 16 / 2)), in};
  for (int64_t row = 0; row < rows; row += 16) round_block(x + row * in, rows - row, in, halves.tile(row, 0));
  alignas(64) float sums[2][16 * W];
  configure_tiles(16);
  for (int64_t n = 0; n < out; n += 2 * W) {
    const Half *first = weight + n * in, *second = first + W * in;
    ask_ahead(first, 2 * W * in);
    for (int64_t row = 0; row < rows; row += 16) {
      _tile_zero(0);
      _tile_zero(1);
      for (int64_t k = 0; k < in; k += kPairs) {
        _tile_loadd(4, halves.tile(row, k), 64);
        _tile_loadd(6, first + k, in * sizeof(Half));
        _tile_loadd(7, second + k, in * sizeof(Half));
        _tile_dpbf16ps(0, 6, 4);
        _tile_dpbf16ps(1, 7, 4);
      }
      _tile_stored(0, sums[0], 64);
      _tile_stored(1, sums[1], 64);
      memory_barrier();
      store_sums<false>(sums[0], rows - row, W, y + row * out + n, out);
      store_sums<false>(sums[1], rows - row, W, y + row * out + n + W, out);
    }
  }
  _tile_release();
}

// y [rows, out]; out and in are multiples of 32.
inline void draft_product(const Half* weight, int64_t out, int64_t in, const float* x, int64_t rows, float* y) {
  if (rows >= kFewestInTiles && amx_allowed()) return product_in_tiles(weight, out, in, x, rows, y);
  product_of_pairs(weight, out, in, x, rows, y);
}

#else

inline void prepare_weights(Half*, int64_t) {}

// Rows of x against the same weights, as many at a time as there are registers for.
template <int MM>
inline void product_tiles(const Half* const* w, const float* x, int64_t rows, int64_t in, float* y, int64_t out) {
  int64_t m = 0;
  for (; m + MM <= rows; m += MM) dot_tile<MM>(w, x + m * in, in, y + m * out, out);
  if constexpr (MM > 1)
    if (m < rows) product_tiles<MM - 1>(w, x + m * in, rows - m, in, y + m * out, out);
}

// y [rows, out]; out and in are multiples of 32.
inline void draft_product(const Half* weight, int64_t out, int64_t in, const float* x, int64_t rows, float* y) {
  constexpr int kMost = W == 16 ? 4 : 3;  // dot_tile unrolls so many
  for (int64_t n = 0; n < out; n += kTogether) {
    const Half* w[kTogether];
    for (int64_t i = 0; i < kTogether; i++) w[i] = weight + (n + i) * in;
    ask_ahead(w[0], kTogether * in);
    product_tiles<kMost>(w, x, rows, in, y + n, out);
  }
}

#endif

}  // namespace hk
