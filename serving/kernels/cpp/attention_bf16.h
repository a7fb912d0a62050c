// The attention of attention.h on AMX tiles, with queries, keys, values and their weights rounded to bfloat16;
// scores, exponentials and sums are float32 as there.
//
// Keys and values are loaded as they lie in the cache. Positions go in groups of 16 that start at multiples of
// 16, so here too neither chunking nor other rows change a query's bits.
#pragma once

#include "attention.h"
#include "awq_bf16.h"

namespace hk {

#if defined(HK_AMX_BF16)

// Tiles 0 … 3: sums; 4: 16 queries; 5: keys; 6: values, half a tile; 7: weights of 16 positions.
inline void configure_attention_tiles() {
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 32};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8, 16};
  } config;
  memory_barrier();
  _tile_loadconfig(&config);
}

// What a unit needs. `u` has the scores of one tile of queries, of positions u.start on; u.start = u.first.
struct Tiled {
  Queries u;
  const Unit& unit;
  const KvCache& cache;
  int64_t seen_to;             // positions from here on exist for no query of the unit
  uint8_t *queries, *weights;  // [count / 16, dim / 32] tiles; [16, width] bfloat16
  uint8_t* end;                // values of the last 16 positions, where some do not exist yet
  int64_t width() const { return u.last - u.start; }
  int64_t block(int64_t p) const { return unit.blocks[p / cache.block_size]; }
  const uint8_t* keys(int64_t p) const { return cache.key_tiles(block(p), unit.head, p % cache.block_size); }
  const uint8_t* stored_values(int64_t p) const {
    return cache.value_tiles(block(p), unit.head, p % cache.block_size);
  }
  const uint8_t* values(int64_t p) const { return p + W > seen_to ? end : stored_values(p); }
};

// Values of positions that do not exist yet may be anything in memory, and are 0 here.
inline void copy_end(const Tiled& t) {
  const uint8_t* from = t.stored_values(t.u.last - W);
  const int64_t count = t.seen_to % W;
  for (int64_t line = 0; line < t.cache.head_dim / 2; line++) {
    const int64_t left = count - line % 8 * 2;
    const __mmask32 mask = left <= 0 ? 0 : left == 1 ? 0x55555555 : 0xFFFFFFFF;
    _mm512_storeu_si512(t.end + line * 64, _mm512_maskz_loadu_epi16(mask, from + line * 64));
  }
}

inline Tiled make_tiled(const Unit& unit, const KvCache& cache, AttentionShape shape) {
  const int64_t group = shape.heads / shape.kv_heads, dim = shape.head_dim;
  const int64_t seen_from = shape.window ? std::max<int64_t>(0, unit.position + 1 - shape.window) : 0;
  Tiled t{{}, unit, cache, unit.position + unit.count, nullptr, nullptr, nullptr};
  Queries& u = t.u;
  u.count = unit.count * group;
  u.first = u.start = seen_from / W * W;
  u.last = (t.seen_to + W - 1) / W * W;
  u.stride = std::max(t.width(), dim) + W;  // an odd number of lines: rows in different sets
  if (u.stride / W % 2 == 0) u.stride += W;
  const int64_t tall = (u.count + W - 1) / W * W;
  u.scores = scratch(W * u.stride + (tall * dim + W * u.stride + dim * W) / 2);
  t.queries = reinterpret_cast<uint8_t*>(u.scores + W * u.stride);
  t.weights = t.queries + tall * dim * 2;
  t.end = t.weights + W * u.stride * 2;
  if (t.seen_to % W) copy_end(t);
  return t;
}

inline __m512i round_line(const float* x, float scale) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)(loadf(x + W) * scale), (__m512)(loadf(x) * scale));
}

inline void load_queries(const Tiled& t, const float* qkv, AttentionShape shape) {
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads;
  const int64_t ld = (shape.heads + 2 * shape.kv_heads) * dim;
  const float scale = 1.0f / std::sqrt(float(dim));
  for (int64_t i = 0; i < (t.u.count + W - 1) / W * W; i++) {
    const int64_t at = std::min(i, t.u.count - 1);  // past the last query: it again
    const float* from = qkv + (t.unit.row + at / group) * ld + (t.unit.head * group + at % group) * dim;
    uint8_t* to = t.queries + i / W * W * dim * 2 + i % W * 64;
    for (int64_t d = 0; d < dim; d += kPairs, to += kTileBytes) _mm512_store_si512(to, round_line(from + d, scale));
  }
}

// Scores of 16 queries, four groups of positions at a time.
inline void score_tiles(const Tiled& t, const uint8_t* queries) {
  const int64_t dim = t.cache.head_dim, stride = t.u.stride * sizeof(float);
  for (int64_t p = t.u.start; p < t.u.last; p += 4 * W) {
    const int64_t count = std::min<int64_t>(4, (t.u.last - p) / W);
    const uint8_t* keys[4];
    for (int i = 0; i < 4; i++) keys[i] = t.keys(p + std::min<int64_t>(i, count - 1) * W);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t at = 0; at < dim / kPairs * kTileBytes; at += kTileBytes) {
      _tile_loadd(4, queries + at, 64);
      _tile_loadd(5, keys[0] + at, 64);
      _tile_dpbf16ps(0, 4, 5);
      if (count > 1) _tile_loadd(5, keys[1] + at, 64);
      if (count > 1) _tile_dpbf16ps(1, 4, 5);
      if (count > 2) _tile_loadd(5, keys[2] + at, 64);
      if (count > 2) _tile_dpbf16ps(2, 4, 5);
      if (count > 3) _tile_loadd(5, keys[3] + at, 64);
      if (count > 3) _tile_dpbf16ps(3, 4, 5);
    }
    float* to = t.u.scores + p - t.u.start;
    _tile_stored(0, to, stride);
    if (count > 1) _tile_stored(1, to + W, stride);
    if (count > 2) _tile_stored(2, to + 2 * W, stride);
    if (count > 3) _tile_stored(3, to + 3 * W, stride);
  }
  memory_barrier();
}

// sums [dim / 16, 16 queries, 16]: weighted values.
inline void weigh_tiles(const Tiled& t, float* sums) {
  constexpr int64_t kHalf = kTileBytes / 2;
  memory_barrier();
  for (int64_t c = 0; c < t.cache.head_dim / W; c += 2) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t p = t.u.start; p < t.u.last; p += W) {
      const uint8_t* values = t.values(p) + c * kHalf;
      _tile_loadd(7, t.weights + (p - t.u.start) * 2, t.u.stride * 2);
      _tile_loadd(6, values, 64);
      _tile_dpbf16ps(0, 7, 6);
      _tile_loadd(6, values + kHalf, 64);
      _tile_dpbf16ps(1, 7, 6);
    }
    _tile_stored(0, sums + c * W * W, 64);
    _tile_stored(1, sums + (c + 1) * W * W, 64);
  }
  memory_barrier();
}

// Calls use(row, head, values) with what each query of the unit comes to, [head_dim].
template <class F>
inline void attend_in_tiles(const Unit& unit, const float* qkv, const KvCache& cache, AttentionShape shape, F use) {
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads, window = shape.window;
  const Tiled t = make_tiled(unit, cache, shape);
  load_queries(t, qkv, shape);
  std::vector<float> sums(dim * W);
  configure_attention_tiles();
  for (int64_t first = 0; first < t.u.count; first += W) {
    const int64_t count = std::min<int64_t>(W, t.u.count - first);
    float inverse[W];
    score_tiles(t, t.queries + first * dim * 2);
    for (int64_t m = 0; m < count; m++) {
      const int64_t at = unit.position + (first + m) / group;
      inverse[m] = softmax(t.u, m, window ? std::max<int64_t>(0, at + 1 - window) : 0, at + 1);
      const float* weights = t.u.scores + m * t.u.stride;
      for (int64_t p = 0; p < t.width(); p += W)
        _mm256_store_si256(reinterpret_cast<__m256i*>(t.weights + (m * t.u.stride + p) * 2),
                           (__m256i)_mm512_cvtneps_pbh((__m512)loadf(weights + p)));
    }
    weigh_tiles(t, sums.data());
    for (int64_t m = 0; m < count; m++) {
      const int64_t row = unit.row + (first + m) / group, head = unit.head * group + (first + m) % group;
      for (int64_t d = 0; d < dim; d += W)
        storef(t.u.scores + d, loadf(sums.data() + d * W + m * W) * inverse[m]);
      use(row, head, t.u.scores);
    }
  }
  _tile_release();
}

template <class F>
inline void each_attended(Pool& pool, const float* qkv, const KvCache& cache, const Batch& b, AttentionShape shape,
                          F use) {
  const int64_t queries = b.tokens > 64 ? 6 * W : W;  // few rows: more units; many: less to set up
  each_unit(pool, b, shape, queries, [&](const Unit& unit) { attend_in_tiles(unit, qkv, cache, shape, use); });
}

// Rounded, as the next matmul reads it.
inline void attention(Pool& pool, const float* qkv, const KvCache& cache, const Batch& b, AttentionShape shape,
                      const Halves& out) {
  const int64_t dim = shape.head_dim;
  each_attended(pool, qkv, cache, b, shape, [&](int64_t row, int64_t head, const float* values) {
    for (int64_t d = 0; d < dim; d += kPairs) round_row(values + d, out.tile(row, head * dim + d), row);
  });
}

#endif

inline void attention(Pool& pool, const float* qkv, const KvCache& cache, const Batch& b, AttentionShape shape,
                      float* out) {
#if defined(HK_AMX_BF16)
  if (cache.in_tiles)
    return each_attended(pool, qkv, cache, b, shape, [&](int64_t row, int64_t head, const float* values) {
      std::memcpy(out + (row * shape.heads + head) * shape.head_dim, values, shape.head_dim * sizeof(float));
    });
#endif
  each_unit(pool, b, shape, 2 * kQueries, [&](const Unit& unit) { attend(unit, qkv, cache, shape, out); });
}

}  // namespace hk
