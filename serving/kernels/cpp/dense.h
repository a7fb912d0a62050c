// Matmul with unquantized weights in the checkpoint's layout, [N, K] row by row: for the head, and for the layers of
// unquantized checkpoints. float16 and bfloat16 are widened to float32 on loading, which is exact.
//
// x[m] · w[n]: lane l sums the k ≡ l (mod W) in order of k, then the lanes are summed in a fixed order. The result does
// not depend on M or on which other products are computed. Where both are bfloat16 (dense_bf16.h), a lane sums pairs of
// neighbouring k's.
#pragma once

#include <algorithm>

#include "elementwise.h"
#include "pool.h"
#include "simd.h"

namespace hk {

struct Dense {
  const void* data;  // [out, in]
  int32_t dtype;
  int32_t inputs;  // an Inputs value; rounds_inputs of dense_bf16.h says which of them round
  int64_t in, out;
};

constexpr int kWeightRows = 4;  // rows of weights multiplied at a time

// How weights are multiplied with inputs of type X, kWidth of them at a time.
template <class X>
struct Product;

template <>
struct Product<float> {
  static constexpr int kWidth = W, kHeight = 3;  // rows of inputs for which there are registers
  static vf input(const float* x, int n) { return loadf_n(x, n); }
  template <class T>
  static vf weight(const T* w, int n) {
    return widen_n(w, n);
  }
  static void add(vf& acc, vf weight, vf input) { acc = fma(weight, input, acc); }
};

template <>
struct Product<BFloat16> {  // for weights in bfloat16, and a depth that is a multiple of kWidth
  static constexpr int kWidth = 2 * W, kHeight = W == 16 ? 6 : 3;
  static vu input(const BFloat16* x, int) { return load<vu>(x); }
  static vu weight(const BFloat16* w, int) { return load<vu>(w); }
  static void add(vf& acc, vu weight, vu input) { add_dot_bfloat16(acc, weight, input); }
};

// Adds the products of k = first … last - 1: MM rows of x with kWeightRows rows of weights, which are `depth` apart.
template <int MM, class T, class X>
[[gnu::always_inline]] inline void add_products(const T* const* w, const X* x, int64_t depth, int64_t first,
                                                int64_t last, vf (&acc)[kWeightRows][MM]) {
  using P = Product<X>;
  auto step = [&](int64_t k, int count) __attribute__((always_inline)) {
    decltype(P::input(x, count)) value[MM];
#pragma GCC unroll 6
    for (int m = 0; m < MM; m++) {
      value[m] = P::input(x + m * depth + k, count);
      pin(value[m]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < kWeightRows; n++) {
      auto weight = P::weight(w[n] + k, count);
      __builtin_prefetch(w[n] + kWeightRows * depth + k);  // probably the next rows
      pin(weight);
#pragma GCC unroll 6
      for (int m = 0; m < MM; m++) P::add(acc[n][m], weight, value[m]);
    }
  };
  int64_t k = first;
  for (; k + P::kWidth <= last; k += P::kWidth) step(k, P::kWidth);
  if (k < last) step(k, last - k);
}

// MM rows of x against kWeightRows rows of weights.
template <int MM, class T>
inline void dot_tile(const T* const* w, const float* x, int64_t depth, float* out, int64_t ldo) {
  vf acc[kWeightRows][MM] = {};
  add_products<MM>(w, x, depth, 0, depth, acc);
#pragma GCC unroll 4
  for (int m = 0; m < MM; m++) {
    const v4 sums = sum4(acc[0][m], acc[1][m], acc[2][m], acc[3][m]);
    std::memcpy(out + m * ldo, &sums, sizeof sums);
  }
}

// All rows of x against kWeightRows rows of weights, MM rows of x at a time and then what is left.
template <int MM, class T>
inline void dot_rows(const T* const* w, const float* x, int64_t rows, int64_t depth, float* out, int64_t ldo) {
  int64_t m = 0;
  for (; m + MM <= rows; m += MM) dot_tile<MM>(w, x + m * depth, depth, out + m * ldo, ldo);
  if constexpr (MM > 1)
    if (m < rows) dot_rows<MM - 1>(w, x + m * depth, rows - m, depth, out + m * ldo, ldo);
}

constexpr int kRows = 12;  // rows of x at a time
constexpr int kUnit = 64;  // rows of weights in a unit of work
constexpr int64_t kDepthBytes = 2048;  // of a row at a time: kRows rows of x stay in the L1 cache
// Fewer products than this (about 0.1 ms with cold caches) take less time than waking another thread.
constexpr int64_t kMinParallelProducts = 1 << 20;

// add_products to sums[n][m], which begin at 0 with first = 0. Where it is inlined, GCC 12 keeps sums in memory.
template <int MM, class T, class X>
[[gnu::noinline]] void add_tile(const T* const* w, const X* x, int64_t depth, int64_t first, int64_t last,
                                vf (*sums)[kRows]) {
  vf acc[kWeightRows][MM] = {};
  if (first) {
#pragma GCC unroll 4
    for (int n = 0; n < kWeightRows; n++)
#pragma GCC unroll 6
      for (int m = 0; m < MM; m++) acc[n][m] = sums[n][m];
  }
  add_products<MM>(w, x, depth, first, last, acc);
#pragma GCC unroll 4
  for (int n = 0; n < kWeightRows; n++)
#pragma GCC unroll 6
    for (int m = 0; m < MM; m++) sums[n][m] = acc[n][m];
}

// The same for rows m … rows - 1 of x, in tiles of MM and one of what is left.
template <int MM, class T, class X>
inline void add_rows(const T* const* w, const X* x, int64_t m, int64_t rows, int64_t depth, int64_t first, int64_t last,
                     vf (*sums)[kRows]) {
  for (; m + MM <= rows; m += MM)
    add_tile<MM>(w, x + m * depth, depth, first, last, reinterpret_cast<vf(*)[kRows]>(&sums[0][m]));
  if constexpr (MM > 1)
    if (m < rows) add_rows<MM - 1>(w, x, m, rows, depth, first, last, sums);
}

// Multiplies all rows of x with rows first … last - 1 of the weights, at most kUnit. Results are collected in a local
// buffer first: rows of `out` are far apart, often by a power of two, and would evict each other from the cache.
template <class T, class X>
void dense_range(const T* data, const Dense& d, int64_t first, int64_t last, const X* x, int64_t rows, float* out,
                 int64_t ldo) {
  vf sums[kUnit][kRows];
  float results[kRows][kUnit];
  // A few rows stay in the cache anyway, and weights are read faster in one piece.
  const int64_t step = rows > 4 ? kDepthBytes / sizeof(X) : d.in;
  for (int64_t m = 0; m < rows; m += kRows) {
    const int64_t height = std::min<int64_t>(kRows, rows - m);
    for (int64_t k = 0; k < d.in; k += step)
      for (int64_t n = first; n < last; n += kWeightRows) {
        const T* w[kWeightRows];
        for (int64_t i = 0; i < kWeightRows; i++) w[i] = data + std::min(n + i, last - 1) * d.in;
        add_rows<Product<X>::kHeight>(w, x + m * d.in, 0, height, d.in, k, std::min(d.in, k + step), &sums[n - first]);
      }
    for (int64_t n = 0; n < last - first; n += kWeightRows)
      for (int64_t i = 0; i < height; i++) {
        const v4 row = sum4(sums[n][i], sums[n + 1][i], sums[n + 2][i], sums[n + 3][i]);
        std::memcpy(&results[i][n], &row, sizeof row);
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

template <class T, class X>
void dense_product(Pool& pool, const T* data, const Dense& d, const X* x, int64_t rows, float* out, int64_t ldo) {
  pool.each_range(d.out, kUnit, [&](int64_t first, int64_t last) {
    dense_range(data, d, first, last, x, rows, out, ldo);
  });
}

}  // namespace hk
