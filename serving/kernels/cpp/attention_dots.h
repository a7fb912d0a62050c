// The attention of attention.h on bfloat16 dot products (VDPBF16PS), for CPUs that have these but no AMX. Queries,
// keys, values and attention weights are rounded to bfloat16; scores, exponentials and sums stay float32.
//
// The cache has the layout of AMX tiles (kv_cache.h), whose lines are pairs as the instruction reads them. A score is
// one chain over pairs of dims, a result one chain over pairs of positions, and a masked position has a weight of
// exactly 0. So a query's result is the same, bit for bit, whatever the chunking and the other rows are.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (VDPBF16PS).
#pragma once

#include "attention.h"

namespace hk {

#if defined(HK_BF16_DOTS)

inline vu splat_pair(const BFloat16* x) {
  uint32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return (vu)splat_int(int32_t(pair));
}

// The buffers of one unit: u.start = u.first, and positions are processed in groups of 16.
struct Paired {
  Queries u;
  const Unit& unit;
  const KvCache& cache;
  BFloat16 *queries, *weights;  // [count, head_dim]; [count, width]
  uint8_t* end;  // the values of the last 16 positions, 0 past the context
  int64_t width() const { return (u.last - u.start + W - 1) / W * W; }
  const uint8_t* keys(int64_t p) const { return cache.key_tiles(block(p), unit.head, p % cache.block_size); }
  const uint8_t* values(int64_t p) const { return p + W > u.last ? end : stored_values(p); }
  const uint8_t* stored_values(int64_t p) const {
    return cache.value_tiles(block(p), unit.head, p % cache.block_size);
  }

 private:
  int64_t block(int64_t p) const { return unit.blocks[p / cache.block_size]; }
};

// Memory past the context is uninitialized: it may hold NaN, and 0 · NaN is NaN.
inline void copy_last_values(const Paired& t) {
  const int64_t count = t.u.last % W;
  const uint8_t* from = t.stored_values(t.u.last - count);
  for (int64_t line = 0; line < t.cache.head_dim / 2; line++) {
    const int64_t left = count - line % 8 * 2;
    const uint32_t mask = left <= 0 ? 0 : left == 1 ? 0xffff : 0xffffffff;
    const vu values = load<vu>(from + line * 64) & mask;
    store(t.end + line * 64, values);
  }
}

inline Paired pair_queries(const Unit& unit, const float* qkv, const KvCache& cache, AttentionShape shape) {
  thread_local Buffer buffer;
  const int64_t dim = shape.head_dim;
  Paired t{gather_queries(unit, qkv, shape, W), unit, cache, nullptr, nullptr, nullptr};
  const int64_t halves = t.u.count * (dim + t.width()) + dim * W;
  t.end = reinterpret_cast<uint8_t*>(buffer.reserve(halves / 2));
  t.queries = reinterpret_cast<BFloat16*>(t.end + dim * W * sizeof(BFloat16));
  t.weights = t.queries + t.u.count * dim;
  for (int64_t d = 0; d < t.u.count * dim; d += W) round_to_bfloat16(loadf(t.u.rows + d), t.queries + d);
  if (t.u.last % W) copy_last_values(t);
  return t;
}

// Scores of MQ queries for 16 positions from each of `keys`. Inlined, GCC would keep the sums in memory.
template <int MQ>
[[gnu::noinline]] void score_pairs(const BFloat16* queries, int64_t dim, const uint8_t* const* keys, float* out,
                                   int64_t stride) {
  vf acc[MQ][2] = {};
  for (int64_t d = 0; d < dim; d += 2) {
    vu first = load<vu>(keys[0] + d * 32), second = load<vu>(keys[1] + d * 32);
    pin(first);
    pin(second);
#pragma GCC unroll 6
    for (int i = 0; i < MQ; i++) {
      const vu pair = splat_pair(queries + i * dim + d);
      add_dot_bfloat16(acc[i][0], pair, first);
      add_dot_bfloat16(acc[i][1], pair, second);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < MQ; i++) {
    storef(out + i * stride, acc[i][0]);
    storef(out + i * stride + W, acc[i][1]);
  }
}

// The weighted sums of values for MQ queries and 32 dims from `dim` on: t.u.sums.
template <int MQ>
[[gnu::noinline]] void weigh_pairs(const Paired& t, int64_t query, int64_t dim) {
  vf acc[MQ][2] = {};
  const int64_t width = t.width();
  const BFloat16* weights = t.weights + query * width;
  for (int64_t p = t.u.start; p < t.u.last; p += W) {
    const uint8_t* lines = t.values(p) + dim * 32;
    for (int r = 0; r < 8; r++, lines += 64, weights += 2) {
      vu first = load<vu>(lines), second = load<vu>(lines + 8 * 64);
      pin(first);
      pin(second);
#pragma GCC unroll 6
      for (int i = 0; i < MQ; i++) {
        const vu pair = splat_pair(weights + i * width);
        add_dot_bfloat16(acc[i][0], pair, first);
        add_dot_bfloat16(acc[i][1], pair, second);
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < MQ; i++) {
    storef(t.u.sums + (query + i) * t.u.padded + dim, acc[i][0]);
    storef(t.u.sums + (query + i) * t.u.padded + dim + W, acc[i][1]);
  }
}

inline void attend_in_pairs(const Unit& unit, const float* qkv, const KvCache& cache, AttentionShape shape,
                            float* out) {
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads;
  const Paired t = pair_queries(unit, qkv, cache, shape);
  const Queries& u = t.u;
  for (int64_t p = u.start; p < u.last; p += 2 * W) {  // an odd last group is computed twice; there is room for it
    const uint8_t* keys[2] = {t.keys(p), t.keys(p + W < u.last ? p + W : p)};
    for (int64_t i = 0; i < u.count; i += kQueries)
      with_count<kQueries>(u.count - i, [&](auto n) {
        score_pairs<n>(t.queries + i * dim, dim, keys, u.scores + i * u.stride + p - u.start, u.stride);
      });
  }
  std::vector<float> inverse(u.count);
  for (int64_t i = 0; i < u.count; i++) {
    const int64_t at = unit.position + i / group;
    inverse[i] = softmax(u, i, shape.window ? std::max<int64_t>(0, at + 1 - shape.window) : 0, at + 1);
    for (int64_t p = 0; p < t.width(); p += W)
      round_to_bfloat16(loadf(u.scores + i * u.stride + p), t.weights + i * t.width() + p);
  }
  for (int64_t i = 0; i < u.count; i += kQueries)
    for (int64_t d = 0; d < dim; d += 2 * W)
      with_count<kQueries>(u.count - i, [&](auto n) { weigh_pairs<n>(t, i, d); });
  for (int64_t i = 0; i < u.count; i++) {
    float* to = out + ((unit.row + i / group) * shape.heads + unit.head * group + i % group) * dim;
    for (int64_t d = 0; d < dim; d += W) storef(to + d, loadf(u.sums + i * u.padded + d) * inverse[i]);
  }
}

#endif

}  // namespace hk
