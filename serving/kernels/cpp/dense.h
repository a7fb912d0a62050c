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

template <int NN, int MM, class T>
inline void dot_tile(const T* const* w, const float* x, int64_t depth, float* out, int64_t ldo) {
  vf acc[NN][MM] = {};
  int64_t k = 0;
  for (; k + W <= depth; k += W) {
    vf value[MM];
#pragma GCC unroll 4
    for (int m = 0; m < MM; m++) {
      value[m] = loadf(x + m * depth + k);
      pin(value[m]);
    }
#pragma GCC unroll 8
    for (int n = 0; n < NN; n++) {
      vf weight = widen(w[n] + k);
      pin(weight);
#pragma GCC unroll 4
      for (int m = 0; m < MM; m++) acc[n][m] = fma(weight, value[m], acc[n][m]);
    }
  }
  if (k < depth)
    for (int n = 0; n < NN; n++)
      for (int m = 0; m < MM; m++)
        acc[n][m] = fma(widen_n(w[n] + k, depth - k), loadf_n(x + m * depth + k, depth - k), acc[n][m]);
  for (int m = 0; m < MM; m++)
    for (int n = 0; n < NN; n++) out[m * ldo + n] = sum(acc[n][m]);
}

// All rows of x against NN rows of weights.
template <int NN, class T>
inline void dot_rows(const T* const* w, const float* x, int64_t rows, int64_t depth, float* out, int64_t ldo) {
  int64_t m = 0;
  for (; m + 3 <= rows; m += 3) dot_tile<NN, 3>(w, x + m * depth, depth, out + m * ldo, ldo);
  if (rows - m == 2) dot_tile<NN, 2>(w, x + m * depth, depth, out + m * ldo, ldo);
  if (rows - m == 1) dot_tile<NN, 1>(w, x + m * depth, depth, out + m * ldo, ldo);
}

// Rows of weights first … last - 1. With many rows of x, weights are widened once into scratch.
template <class T>
void dense_range(const T* data, const Dense& d, int64_t first, int64_t last, const float* x, int64_t rows,
                 float* out, int64_t ldo) {
  constexpr int kTogether = 4;
  const bool copy = rows > 3 && sizeof(T) != sizeof(float);
  float* wide = copy ? scratch(kTogether * (d.in + W)) : nullptr;
  for (int64_t n = first; n < last; n += kTogether) {
    const int64_t count = std::min<int64_t>(kTogether, last - n);
    const T* w[kTogether];
    const float* copied[kTogether];
    for (int64_t i = 0; i < count; i++) {
      w[i] = data + (d.rows ? d.rows[n + i] : n + i) * d.in;
      if (!copy) continue;
      float* to = wide + i * (d.in + W);
      for (int64_t k = 0; k < d.in; k += W) storef(to + k, widen_n(w[i] + k, d.in - k));
      copied[i] = to;
    }
    auto compute = [&](auto pointers) {
      if (count == kTogether) return dot_rows<kTogether>(pointers, x, rows, d.in, out + n, ldo);
      for (int64_t i = 0; i < count; i++) dot_rows<1>(pointers + i, x, rows, d.in, out + n + i, ldo);
    };
    if (copy)
      compute(static_cast<const float* const*>(copied));
    else
      compute(static_cast<const T* const*>(w));
  }
}

inline void dense_gemm(Pool& pool, const Dense& d, const float* x, int64_t rows, float* out, int64_t ldo) {
  with_type(d.data, d.dtype, [&](auto data) {
    pool.each_range(d.out, 64, [&](int64_t first, int64_t last) {
      dense_range(data, d, first, last, x, rows, out, ldo);
    });
  });
}

}  // namespace hk
