// Matmul with unquantized weights as the checkpoint holds them, [N, K] row by row: the head, and the
// layers of unquantized checkpoints. float16 and bfloat16 are widened on the way, which is exact.
//
// out[m, n]: lane l sums k ≡ l (mod W) in order of k, then the lanes are summed in a fixed order; the same
// for every M, tile and choice of rows.
#pragma once

#include <algorithm>

#include "elementwise.h"
#include "pool.h"
#include "simd.h"

namespace hk {

struct Dense {
  const void* data;  // [out, in]
  int32_t dtype;
  int64_t in, out;
  const int32_t* rows;  // the rows to compute, `out` of them; null: all
};

constexpr int kTogether = 4;  // rows of weights at a time

// MM rows of x against kTogether rows of weights.
template <int MM, class T>
inline void dot_tile(const T* const* w, const float* x, int64_t depth, float* out, int64_t ldo) {
  vf acc[kTogether][MM] = {};
  auto step = [&](int64_t k, int n_lanes) __attribute__((always_inline)) {
    vf value[MM];
#pragma GCC unroll 4
    for (int m = 0; m < MM; m++) {
      value[m] = loadf_n(x + m * depth + k, n_lanes);
      pin(value[m]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < kTogether; n++) {
      vf weight = widen_n(w[n] + k, n_lanes);
      __builtin_prefetch(w[n] + kTogether * depth + k);  // the rows that most likely come next
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

// All rows of x against kTogether rows of weights.
template <class T>
inline void dot_rows(const T* const* w, const float* x, int64_t rows, int64_t depth, float* out, int64_t ldo) {
  int64_t m = 0;
  for (; m + 3 <= rows; m += 3) dot_tile<3>(w, x + m * depth, depth, out + m * ldo, ldo);
  if (rows - m == 2) dot_tile<2>(w, x + m * depth, depth, out + m * ldo, ldo);
  if (rows - m == 1) dot_tile<1>(w, x + m * depth, depth, out + m * ldo, ldo);
}

constexpr int kRows = 12;  // rows of x at a time: they stay in the first-level cache
constexpr int kUnit = 64;  // rows of weights a unit

// Rows of weights first … last - 1, at most kUnit. Results are collected here first: rows of `out` are far
// apart, often by a power of two, and would push each other out of the cache.
template <class T>
void dense_range(const T* data, const Dense& d, int64_t first, int64_t last, const float* x, int64_t rows,
                 float* out, int64_t ldo) {
  float results[kRows][kUnit];
  for (int64_t m = 0; m < rows; m += kRows) {
    const int64_t height = std::min<int64_t>(kRows, rows - m);
    for (int64_t n = first; n < last; n += kTogether) {
      const T* w[kTogether];
      for (int64_t i = 0; i < kTogether; i++) {
        const int64_t row = std::min(n + i, last - 1);
        w[i] = data + (d.rows ? d.rows[row] : row) * d.in;
      }
      dot_rows(w, x + m * d.in, height, d.in, &results[0][n - first], kUnit);
    }
    for (int64_t i = 0; i < height; i++)
      std::memcpy(out + (m + i) * ldo + first, results[i], (last - first) * sizeof(float));
  }
}

inline void dense_gemm(Pool& pool, const Dense& d, const float* x, int64_t rows, float* out, int64_t ldo) {
  with_type(d.data, d.dtype, [&](auto data) {
    pool.each_range(d.out, kUnit, [&](int64_t first, int64_t last) {
      dense_range(data, d, first, last, x, rows, out, ldo);
    });
  });
}

}  // namespace hk
