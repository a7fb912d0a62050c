// Matmul with unquantized weights in the checkpoint's layout, [N, K] row by row: for the head, and for the layers of
// unquantized checkpoints. float16 and bfloat16 are widened to float32 on loading, which is exact.
//
// x[m] · w[n]: lane l sums the k ≡ l (mod W) in order of k, then the lanes are summed in a fixed order. The result does
// not depend on M or on which other products are computed.
#pragma once

#include <algorithm>

#include "elementwise.h"
#include "pool.h"
#include "simd.h"

namespace hk {

struct Dense {
  const void* data;  // [out, in]
  int32_t dtype;
  int32_t inputs;  // an Inputs value: bfloat16 (dense_bf16.h) or float32
  int64_t in, out;
};

constexpr int kWeightRows = 4;  // rows of weights multiplied at a time

// MM rows of x against kWeightRows rows of weights.
template <int MM, class T>
inline void dot_tile(const T* const* w, const float* x, int64_t depth, float* out, int64_t ldo) {
  vf acc[kWeightRows][MM] = {};
  auto step = [&](int64_t k, int n_lanes) __attribute__((always_inline)) {
    vf value[MM];
#pragma GCC unroll 4
    for (int m = 0; m < MM; m++) {
      value[m] = loadf_n(x + m * depth + k, n_lanes);
      pin(value[m]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < kWeightRows; n++) {
      vf weight = widen_n(w[n] + k, n_lanes);
      __builtin_prefetch(w[n] + kWeightRows * depth + k);  // probably the next rows
      pin(weight);
#pragma GCC unroll 4
      for (int m = 0; m < MM; m++) acc[n][m] = fma(weight, value[m], acc[n][m]);
    }
  };
  int64_t k = 0;
  for (; k + W <= depth; k += W) step(k, W);
  if (k < depth) step(k, depth - k);
#pragma GCC unroll 4
  for (int m = 0; m < MM; m++) {
    const v4 sums = sum4(acc[0][m], acc[1][m], acc[2][m], acc[3][m]);
    std::memcpy(out + m * ldo, &sums, sizeof sums);
  }
}

// All rows of x against kWeightRows rows of weights.
template <class T>
inline void dot_rows(const T* const* w, const float* x, int64_t rows, int64_t depth, float* out, int64_t ldo) {
  int64_t m = 0;
  for (; m + 3 <= rows; m += 3) dot_tile<3>(w, x + m * depth, depth, out + m * ldo, ldo);
  if (rows - m == 2) dot_tile<2>(w, x + m * depth, depth, out + m * ldo, ldo);
  if (rows - m == 1) dot_tile<1>(w, x + m * depth, depth, out + m * ldo, ldo);
}

constexpr int kRows = 12;  // rows of x at a time: as many as stay in the L1 cache
constexpr int kUnit = 64;  // rows of weights in a unit of work
// Fewer products than this (about 0.1 ms with cold caches) take less time than waking another thread.
constexpr int64_t kMinParallelProducts = 1 << 20;

// Multiplies all rows of x with rows first … last - 1 of the weights, at most kUnit. Results are collected in a local
// buffer first: rows of `out` are far apart, often by a power of two, and would evict each other from the cache.
template <class T>
void dense_range(const T* data, const Dense& d, int64_t first, int64_t last, const float* x, int64_t rows,
                 float* out, int64_t ldo) {
  float results[kRows][kUnit];
  for (int64_t m = 0; m < rows; m += kRows) {
    const int64_t height = std::min<int64_t>(kRows, rows - m);
    for (int64_t n = first; n < last; n += kWeightRows) {
      const T* w[kWeightRows];
      for (int64_t i = 0; i < kWeightRows; i++) w[i] = data + std::min(n + i, last - 1) * d.in;
      dot_rows(w, x + m * d.in, height, d.in, &results[0][n - first], kUnit);
    }
    for (int64_t i = 0; i < height; i++)
      std::memcpy(out + (m + i) * ldo + first, results[i], (last - first) * sizeof(float));
  }
}

// For each of `count` rows of x: the columns whose bits are set, in ascending order, and their products.
struct MaskedProducts {
  const int32_t* rows;
  const uint32_t* bits;  // [count, words]
  int64_t count, words, capacity;
  int32_t* counts;   // [count]; -1 for a row with more than `capacity` columns
  int32_t* columns;  // [count, capacity]
  float* out;        // [count, capacity]; 0 if a row has only one column
};

// Whether no bit from column `limit` on is set in bits [count, ceil(limit / 32)].
inline bool bits_below(const uint32_t* bits, int64_t count, int64_t limit) {
  if (limit % 32 == 0) return true;
  const int64_t words = limit / 32 + 1;
  for (int64_t i = 0; i < count; i++)
    if (bits[(i + 1) * words - 1] >> limit % 32) return false;
  return true;
}

// Fills counts and columns; returns the number of products to compute.
inline int64_t list_columns(const MaskedProducts& c) {
  int64_t products = 0;
  for (int64_t i = 0; i < c.count; i++) {
    const uint32_t* bits = c.bits + i * c.words;
    int32_t *columns = c.columns + i * c.capacity, n = 0;
    for (int64_t at = 0; at < c.words && n >= 0; at++) {
      for (uint32_t word = bits[at]; word; word &= word - 1) {
        if (n == c.capacity) {
          n = -1;
          break;
        }
        columns[n++] = static_cast<int32_t>(at * 32 + __builtin_ctz(word));
      }
    }
    c.counts[i] = n;
    if (n > 1) products += n;
  }
  return products;
}

template <class T>
void masked_row(const T* data, const Dense& d, const MaskedProducts& c, const float* x, int64_t i) {
  const int32_t* columns = c.columns + i * c.capacity;
  const int64_t count = c.counts[i];
  float results[kWeightRows];
  if (count == 1) c.out[i * c.capacity] = 0;
  if (count < 2) return;
  for (int64_t n = 0; n < count; n += kWeightRows) {
    const T* w[kWeightRows];
    for (int64_t j = 0; j < kWeightRows; j++) w[j] = data + columns[std::min(n + j, count - 1)] * d.in;
    dot_tile<1>(w, x + c.rows[i] * d.in, d.in, results, kWeightRows);
    std::memcpy(c.out + i * c.capacity + n, results, std::min<int64_t>(kWeightRows, count - n) * sizeof(float));
  }
}

inline void masked_products(Pool& pool, const Dense& d, const MaskedProducts& c, const float* x) {
  with_type(d.data, d.dtype, [&](auto data) {
    pool.each(c.count, [&](int64_t i) { masked_row(data, d, c, x, i); });
  });
}

inline void dense_gemm_float32(Pool& pool, const Dense& d, const float* x, int64_t rows, float* out, int64_t ldo) {
  with_type(d.data, d.dtype, [&](auto data) {
    pool.each_range(d.out, kUnit, [&](int64_t first, int64_t last) {
      dense_range(data, d, first, last, x, rows, out, ldo);
    });
  });
}

}  // namespace hk
