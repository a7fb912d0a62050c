// Rows of x against the weights of a draft model, on one thread.
//
// Where the CPU has AMX the weights are bfloat16, and so is x where there are many rows: tiles multiply those. Otherwise
// weights are float16. Few rows are float32, weights widened on the way. Only guesses depend on it.
// Source: Intel Architecture Instruction Set Extensions Programming Reference (TDPBF16PS).
#pragma once

#include <algorithm>

#include "awq_bf16.h"
#include "dense.h"

namespace hk {

#if defined(HK_AMX_BF16)
using DraftWeight = BFloat16;
#else
using DraftWeight = Half;
#endif

// Weights as they come to weights as they are multiplied, in place.
inline void prepare_weights(Half* weights, int64_t count) {
#if defined(HK_AMX_BF16)
  for (int64_t i = 0; i < count; i += W) {
    const vh rounded = (vh)_mm512_cvtneps_pbh((__m512)widen_n(weights + i, count - i));
    std::memcpy(weights + i, &rounded, std::min<int64_t>(W, count - i) * sizeof(Half));
  }
#else
  (void)weights, (void)count;
#endif
}

// Between two passes of the large model all caches have lost this one, and the processor's own prefetching stops at
// each page. All weights lie in the order of their use: asking for what comes so far behind finds the next ones too.
constexpr int64_t kAhead = 16 << 10;

inline void ask_for(const void* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(data) + at, 0, 2);
}

inline void ask_ahead(const DraftWeight* weight, int64_t count) {
  ask_for(reinterpret_cast<const char*>(weight) + kAhead, count * sizeof(DraftWeight));
}

// Rows of x against the same weights, as many at a time as there are registers for.
template <int MM>
inline void product_tiles(const DraftWeight* const* w, const float* x, int64_t rows, int64_t in, float* y,
                          int64_t out) {
  int64_t m = 0;
  for (; m + MM <= rows; m += MM) dot_tile<MM>(w, x + m * in, in, y + m * out, out);
  if constexpr (MM > 1)
    if (m < rows) product_tiles<MM - 1>(w, x + m * in, rows - m, in, y + m * out, out);
}

inline void product_of_few(const DraftWeight* weight, int64_t out, int64_t in, const float* x, int64_t rows,
                           float* y) {
  constexpr int kMost = W == 16 ? 4 : 3;  // dot_tile unrolls so many
  for (int64_t n = 0; n < out; n += kTogether) {
    const DraftWeight* w[kTogether];
    for (int64_t i = 0; i < kTogether; i++) w[i] = weight + (n + i) * in;
    ask_ahead(w[0], kTogether * in);
    product_tiles<kMost>(w, x, rows, in, y + n, out);
  }
}

#if defined(HK_AMX_BF16)

constexpr int64_t kFewestInTiles = 8;  // rows

// 16 rows by two strips of columns at a time. Tiles 0 and 1 are sums, 4 inputs, 6 and 7 weights.
inline void product_in_tiles(const DraftWeight* weight, int64_t out, int64_t in, const float* x, int64_t rows, float* y) {
  const int64_t blocks = (rows + 15) / 16;
  const Halves halves{reinterpret_cast<uint8_t*>(scratch(blocks * in * 16 / 2)), in};
  for (int64_t row = 0; row < rows; row += 16) round_block(x + row * in, rows - row, in, halves.tile(row, 0));
  alignas(64) float sums[2][16 * W];
  configure_tiles(16);
  for (int64_t n = 0; n < out; n += 2 * W) {
    const DraftWeight *first = weight + n * in, *second = first + W * in;
    ask_ahead(first, 2 * W * in);
    for (int64_t row = 0; row < rows; row += 16) {
      _tile_zero(0);
      _tile_zero(1);
      for (int64_t k = 0; k < in; k += kPairs) {
        _tile_loadd(4, halves.tile(row, k), 64);
        _tile_loadd(6, first + k, in * sizeof(DraftWeight));
        _tile_loadd(7, second + k, in * sizeof(DraftWeight));
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

#endif

// y [rows, out]; out and in are multiples of 32.
inline void draft_product(const DraftWeight* weight, int64_t out, int64_t in, const float* x, int64_t rows, float* y) {
#if defined(HK_AMX_BF16)
  if (rows >= kFewestInTiles && amx_allowed()) return product_in_tiles(weight, out, in, x, rows, y);
#endif
  product_of_few(weight, out, in, x, rows, y);
}

}  // namespace hk
