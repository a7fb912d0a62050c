// Biases of queries, keys and values, and norms of query and key heads, applied before rotation.
#pragma once

#include "elementwise.h"
#include "kv_cache.h"

namespace hk {

// Pointers are null for what an architecture does not have. Both norms are given, or neither.
struct QkvAdjustment {
  const float* bias;                    // [(heads + 2 kv_heads) head_dim]
  const float *query_norm, *key_norm;   // [head_dim]
  float eps;
};

// Adds the bias and normalizes the heads, in place. qkv: [rows, (heads + 2 kv_heads) head_dim].
inline void adjust_qkv(Pool& pool, float* qkv, const QkvAdjustment& a, AttentionShape shape, int64_t rows) {
  if (!a.bias && !a.query_norm) return;
  const int64_t dim = shape.head_dim, width = (shape.heads + 2 * shape.kv_heads) * dim;
  pool.each_range(rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++) {
      float* row = qkv + t * width;
      if (a.bias) add_row(row, a.bias, width);
      for (int64_t h = 0; a.query_norm && h < shape.heads + shape.kv_heads; h++)
        norm_row(row + h * dim, h < shape.heads ? a.query_norm : a.key_norm, a.eps, dim, row + h * dim);
    }
  });
}

}  // namespace hk
