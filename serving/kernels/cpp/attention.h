// Causal attention that reads the blocks of the KV cache in place.
//
// A unit of work is some rows of one request and one KV head, so that all query heads of the group share each key and
// value that is loaded. Each query passes over its whole context in order of position:
//   1. scores: one chain of fma over head_dim for each position;
//   2. their maximum;
//   3. exponentials, summed by lane (position mod W), then over the lanes in a fixed order;
//   4. values: one chain of fma over the positions for each dim.
// Masked positions have a weight of exactly 0. A query's result is therefore the same, bit for bit, whatever the
// chunking, the tiling and the other rows of the batch are.
#pragma once

#include <algorithm>

#include "kv_cache.h"
#include "pool.h"
#include "simd.h"

namespace hk {

struct Batch {
  int64_t tokens, seqs, max_blocks, num_blocks, block_size;
  const int32_t *query_start, *context_lens, *block_tables;
};

inline bool all_below(const int32_t* values, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; i++)
    if (values[i] < 0 || values[i] >= limit) return false;
  return true;
}

// Whether all rows, context lengths and block numbers of the batch are in range.
inline bool valid(const Batch& b) {
  if (b.query_start[0] != 0 || b.query_start[b.seqs] != b.tokens) return false;
  for (int64_t s = 0; s < b.seqs; s++) {
    const int64_t rows = int64_t(b.query_start[s + 1]) - b.query_start[s], context = b.context_lens[s];
    if (rows < 0 || context < rows || context > b.max_blocks * b.block_size) return false;
    const int64_t blocks = (context + b.block_size - 1) / b.block_size;
    if (!all_below(b.block_tables + s * b.max_blocks, blocks, b.num_blocks)) return false;
  }
  return true;
}

// Some rows of one request and one KV head.
struct Unit {
  int64_t row, count;  // rows row … row + count - 1 of the batch
  int64_t position;    // of the first row
  const int32_t* blocks;
  int64_t head;
};

// The queries of one unit and the range of positions that any of them sees.
struct Queries {
  int64_t count, first, last;  // positions first … last - 1, first a multiple of W
  int64_t start;               // first position of the block that holds `first`
  float* rows;                 // [count, head_dim], scaled
  float* sums;                 // [count, padded] weighted sums of values; padded: head_dim rounded up to 2 W
  int64_t padded;
  float* scores;               // [count, stride], position p at p - start
  int64_t stride;
};

constexpr int kPositions = 64;  // positions per pass over the values: as many as stay in the L1 cache
constexpr int kQueries = 6;  // queries in registers at a time, with two vectors of positions or dims each

// scores[q, p] for the positions of one block, NP vectors of positions at a time. It may write up to one vector past
// the block, which the next block overwrites. Blocks are scattered in memory, where the hardware prefetcher does not
// find them, so the keys of the next block and the values of this one are prefetched here.
template <int MQ, int NP>
inline void score_block(const float* q, const float* keys, const float* next_keys, const float* values,
                        int64_t size, int64_t dim, float* out, int64_t stride) {
  for (int64_t p = 0; p < size; p += NP * W) {
    vf acc[MQ][NP] = {};
    for (int64_t d = 0; d < dim; d++) {
      vf k[NP];
#pragma GCC unroll 2
      for (int n = 0; n < NP; n++) {
        k[n] = loadf(keys + d * size + p + n * W);
        pin(k[n]);
      }
      __builtin_prefetch(next_keys + d * size);
      __builtin_prefetch(values + d * size, 0, 2);
#pragma GCC unroll 6
      for (int i = 0; i < MQ; i++) {
        const vf value = splat(q[i * dim + d]);
#pragma GCC unroll 2
        for (int n = 0; n < NP; n++) acc[i][n] = fma(value, k[n], acc[i][n]);
      }
    }
    for (int i = 0; i < MQ; i++)
      for (int n = 0; n < NP; n++) storef(out + i * stride + p + n * W, acc[i][n]);
  }
}

inline vi lanes() {
  static constexpr int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load<vi>(kLanes);
}

// Replaces the scores of one query by unnormalized weights and returns 1 / their sum. The query sees positions
// low … high - 1; all others get a weight of 0.
inline float softmax(const Queries& u, int64_t query, int64_t low, int64_t high) {
  float* scores = u.scores + query * u.stride - u.start;
  auto seen = [&](int64_t p, vf value, float otherwise) {
    if (p >= low && p + W <= high) return value;
    const vi visible = (lanes() + int(p) >= int(low)) & (lanes() + int(p) < int(high));
    return select(visible, value, splat(otherwise));
  };
  vf top = splat(-INFINITY);
  for (int64_t p = low / W * W; p < high; p += W) top = max(top, seen(p, loadf(scores + p), -INFINITY));
  const float highest = largest(top);
  vf total = {};
  for (int64_t p = u.first; p < u.last; p += W) {
    const vf weight = seen(p, exp(loadf(scores + p) - highest), 0.0f);
    storef(scores + p, weight);
    total += weight;
  }
  return 1.0f / sum(total);
}

// sums[q, d] += Σ weights[q, p] · values[p, d] over positions first … last - 1, for the MQ queries from `query` on and
// the two vectors of dims from `d` on.
template <int MQ>
inline void weigh_values(const Queries& u, int64_t query, const KvCache& cache, const Unit& unit,
                         int64_t first, int64_t last, int64_t d) {
  const int64_t size = cache.block_size, dim = cache.head_dim;
  const float* weights = u.scores + query * u.stride - u.start;
  float* sums = u.sums + query * u.padded + d;
  vf acc[MQ][2];
#pragma GCC unroll 6
  for (int i = 0; i < MQ; i++) {
    acc[i][0] = loadf(sums + i * u.padded);
    acc[i][1] = loadf(sums + i * u.padded + W);
  }
  const int32_t* block = unit.blocks + first / size;
  int64_t offset = first % size;
  for (int64_t p = first; p < last; block++, offset = 0) {
    const float* v = cache.values(*block, unit.head) + offset * dim + d;
    const int64_t end = std::min(last, p + size - offset);
#pragma GCC unroll 4
    for (; p < end; p++, v += dim) {
      vf v0 = loadf(v), v1 = loadf(v + W);
      pin(v0);
      pin(v1);
#pragma GCC unroll 6
      for (int i = 0; i < MQ; i++) {
        const vf weight = splat(weights[i * u.stride + p]);
        acc[i][0] = fma(weight, v0, acc[i][0]);
        acc[i][1] = fma(weight, v1, acc[i][1]);
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < MQ; i++) {
    storef(sums + i * u.padded, acc[i][0]);
    storef(sums + i * u.padded + W, acc[i][1]);
  }
}

inline Queries gather_queries(const Unit& unit, const float* qkv, AttentionShape shape, int64_t size) {
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads;
  const int64_t ld = (shape.heads + 2 * shape.kv_heads) * dim;
  Queries u;
  u.count = unit.count * group;
  u.first = shape.window ? std::max<int64_t>(0, unit.position + 1 - shape.window) / W * W : 0;
  u.last = unit.position + unit.count;
  u.start = u.first / size * size;
  u.stride = (u.last - u.start + size + 4 * W) / W * W + 2;  // no power of two, so that rows use different cache sets
  u.padded = (dim + 2 * W - 1) / (2 * W) * (2 * W);
  u.rows = scratch(u.count * (dim + u.padded + u.stride));
  u.sums = u.rows + u.count * dim;
  u.scores = u.sums + u.count * u.padded;
  const float scale = 1.0f / std::sqrt(float(dim));
  for (int64_t i = 0; i < u.count; i++) {
    const float* from = qkv + (unit.row + i / group) * ld + (unit.head * group + i % group) * dim;
    for (int64_t d = 0; d < dim; d++) u.rows[i * dim + d] = from[d] * scale;
  }
  return u;
}

inline void attend(const Unit& unit, const float* qkv, const KvCache& cache, AttentionShape shape, float* out) {
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads, size = cache.block_size;
  const Queries u = gather_queries(unit, qkv, shape, size);
  const int32_t* block = unit.blocks + u.start / size;
  for (int64_t p = u.start; p < u.last; p += size, block++) {
    const float *keys = cache.keys(*block, unit.head), *values = cache.values(*block, unit.head);
    const float* next_keys = p + size < u.last ? cache.keys(block[1], unit.head) : keys;
    for (int64_t i = 0; i < u.count; i += kQueries)
      with_count<kQueries>(u.count - i, [&](auto n) {
        const auto score = size % (2 * W) ? score_block<n, 1> : score_block<n, 2>;
        score(u.rows + i * dim, keys, next_keys, values, size, dim, u.scores + i * u.stride + p - u.start, u.stride);
      });
  }
  std::memset(u.sums, 0, u.count * u.padded * sizeof(float));
  std::vector<float> inverse(u.count);
  for (int64_t i = 0; i < u.count; i++) {
    const int64_t at = unit.position + i / group;
    inverse[i] = softmax(u, i, shape.window ? std::max<int64_t>(0, at + 1 - shape.window) : 0, at + 1);
  }
  for (int64_t p = u.first; p < u.last; p += kPositions)
    for (int64_t i = 0; i < u.count; i += kQueries)
      for (int64_t d = 0; d < dim; d += 2 * W)
        with_count<kQueries>(u.count - i, [&](auto n) {
          weigh_values<n>(u, i, cache, unit, p, std::min(u.last, p + kPositions), d);
        });
  for (int64_t i = 0; i < u.count; i++) {
    const int64_t at = unit.row + i / group, h = unit.head * group + i % group;
    for (int64_t d = 0; d < dim; d += W)
      storef_n(out + (at * shape.heads + h) * dim + d, loadf(u.sums + i * u.padded + d) * inverse[i], dim - d);
  }
}

// Calls f(unit) for units of about `queries` queries of one request and KV head, at least one row each.
template <class F>
inline void each_unit(Pool& pool, const Batch& b, AttentionShape shape, int64_t queries, F f) {
  const int64_t rows = std::max<int64_t>(1, queries * shape.kv_heads / shape.heads);
  int64_t units = 0;
  for (int64_t s = 0; s < b.seqs; s++)
    units += (b.query_start[s + 1] - b.query_start[s] + rows - 1) / rows * shape.kv_heads;
  pool.each(units, [&](int64_t unit) {
    const int64_t head = unit % shape.kv_heads;
    int64_t tile = unit / shape.kv_heads, s = 0;
    for (;; s++) {
      const int64_t tiles = (b.query_start[s + 1] - b.query_start[s] + rows - 1) / rows;
      if (tile < tiles) break;
      tile -= tiles;
    }
    const int64_t end = b.query_start[s + 1], row = b.query_start[s] + tile * rows;
    const int64_t position = b.context_lens[s] - (end - row);
    f(Unit{row, std::min(rows, end - row), position, b.block_tables + s * b.max_blocks, head});
  });
}

}  // namespace hk
