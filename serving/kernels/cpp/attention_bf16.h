// The attention of attention.h on AMX tiles, with queries, keys, values and their weights rounded to bfloat16;
// scores, exponentials and sums are float32 as there.
//
// A unit turns the keys and values it needs into tiles once and uses them for all its queries. Positions go in
// groups of 32 that start at multiples of 32, so here too neither chunking nor other rows change a query's bits.
#pragma once

#include "attention.h"
#include "awq_bf16.h"

namespace hk {

#if defined(HK_AMX_BF16)

constexpr int kGroup = 32;  // positions whose values one tile instruction weighs

inline bool attends_in_tiles(AttentionShape shape, int64_t block_size) {
  return shape.bfloat16 && shape.head_dim % kPairs == 0 && block_size % W == 0;
}

// Where a unit keeps its tiles. `u` has the scores of one tile of queries, of positions u.start on.
struct Tiles {
  Queries u;
  int64_t dim;
  uint8_t *queries, *keys, *values, *weights;
  uint8_t* key(int64_t p, int64_t d) const { return keys + ((p - u.start) / W * dim / kPairs + d / kPairs) * kTileBytes; }
  uint8_t* value(int64_t p, int64_t d) const { return values + ((p - u.start) / kGroup * dim / W + d / W) * kTileBytes; }
  uint8_t* query(int64_t i, int64_t d) const { return queries + (i / W * dim / kPairs + d / kPairs) * kTileBytes; }
};

// Positions first … last - 1 are whole groups.
inline Tiles make_tiles(const Unit& unit, AttentionShape shape) {
  Tiles t;
  const int64_t group = shape.heads / shape.kv_heads, dim = t.dim = shape.head_dim;
  Queries& u = t.u;
  u.count = unit.count * group;
  u.first = u.start = shape.window ? std::max<int64_t>(0, unit.position + 1 - shape.window) / kGroup * kGroup : 0;
  u.last = u.start + (unit.position + unit.count - u.start + kGroup - 1) / kGroup * kGroup;
  const int64_t width = u.last - u.start, tall = (u.count + W - 1) / W * W;
  u.stride = width + 5 * W;  // room for three vectors too far; an odd number of lines: rows in different sets
  const int64_t halves = (tall + 2 * width) * dim + W * width;
  uint8_t* room = reinterpret_cast<uint8_t*>(scratch(halves / 2 + W * u.stride));
  t.queries = room;
  t.keys = t.queries + tall * dim * 2;
  t.values = t.keys + width * dim * 2;
  t.weights = t.values + width * dim * 2;
  u.scores = reinterpret_cast<float*>(t.weights + W * width * 2);
  return t;
}

inline __m512i round_line(const float* x, float scale) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)(loadf(x + W) * scale), (__m512)(loadf(x) * scale));
}

inline void load_queries(const Tiles& t, const Unit& unit, const float* qkv, AttentionShape shape) {
  const int64_t dim = t.dim, group = shape.heads / shape.kv_heads;
  const int64_t ld = (shape.heads + 2 * shape.kv_heads) * dim;
  const float scale = 1.0f / std::sqrt(float(dim));
  for (int64_t i = 0; i < (t.u.count + W - 1) / W * W; i++) {
    const int64_t at = std::min(i, t.u.count - 1);  // past the last query: it again
    const float* from = qkv + (unit.row + at / group) * ld + (unit.head * group + at % group) * dim;
    for (int64_t d = 0; d < dim; d += kPairs)
      _mm512_store_si512(t.query(i, d) + i % W * 64, round_line(from + d, scale));
  }
}

// Values of positions that no query of the unit sees may be anything in memory, and are 0 here.
inline void load_keys_and_values(const Tiles& t, const Unit& unit, const KvCache& cache, int64_t seen_from,
                                 int64_t seen_to) {
  const int64_t size = cache.block_size, dim = t.dim;
  for (int64_t p = t.u.start; p < t.u.last; p += W) {
    const bool held = p + W > seen_from && p < seen_to;
    const int64_t block = held ? unit.blocks[p / size] : 0, offset = p % size;
    const float *keys = cache.keys(block, unit.head) + offset, *values = cache.values(block, unit.head) + offset * dim;
    const auto value = [&](int64_t i, int64_t d) {
      return p + i >= seen_from && p + i < seen_to ? (__m512)loadf(values + i * dim + d) : _mm512_setzero_ps();
    };
    for (int64_t d = 0; held && d < dim; d += 2)
      _mm512_store_si512(t.key(p, d) + d % kPairs / 2 * 64,
                         interleave((__m512)loadf(keys + d * size), (__m512)loadf(keys + (d + 1) * size)));
    for (int64_t i = 0; i < W; i += 2)
      for (int64_t d = 0; d < dim; d += W)
        _mm512_store_si512(t.value(p, d) + (p % kGroup + i) / 2 * 64, interleave(value(i, d), value(i + 1, d)));
  }
}

// Scores of 16 queries from `query` on, four vectors of positions at a time; up to three too far.
inline void score_tiles(const Tiles& t, int64_t query) {
  const int64_t next = t.dim / kPairs * kTileBytes, stride = t.u.stride * sizeof(float);
  for (int64_t p = t.u.start; p < t.u.last; p += 4 * W) {
    const int64_t count = (t.u.last - p) / W;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < t.dim; d += kPairs) {
      const uint8_t* keys = t.key(p, d);
      _tile_loadd(4, t.query(query, d), 64);
      _tile_loadd(5, keys, 64);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, keys + next, 64);
      _tile_dpbf16ps(1, 4, 6);
      if (count > 2) {
        _tile_loadd(5, keys + 2 * next, 64);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, keys + 3 * next, 64);
        _tile_dpbf16ps(3, 4, 6);
      }
    }
    float* at = t.u.scores + p - t.u.start;
    _tile_stored(0, at, stride);
    _tile_stored(1, at + W, stride);
    _tile_stored(2, at + 2 * W, stride);
    _tile_stored(3, at + 3 * W, stride);
  }
  memory_barrier();
}

// sums [dim / 16, 16 queries, 16]: weighted values.
inline void weigh_tiles(const Tiles& t, float* sums) {
  const int64_t columns = t.dim / W;
  memory_barrier();
  for (int64_t c = 0; c < columns; c += 2) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t p = t.u.start; p < t.u.last; p += kGroup) {
      const uint8_t* values = t.value(p, c * W);
      _tile_loadd(4, t.weights + (p - t.u.start) / kGroup * kTileBytes, 64);
      _tile_loadd(5, values, 64);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, values + kTileBytes, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    _tile_stored(0, sums + c * W * W, 64);
    _tile_stored(1, sums + (c + 1) * W * W, 64);
  }
  memory_barrier();
}

inline void attend_in_tiles(const Unit& unit, const float* qkv, const KvCache& cache, AttentionShape shape, float* out) {
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads, window = shape.window;
  const Tiles t = make_tiles(unit, shape);
  load_queries(t, unit, qkv, shape);
  const int64_t seen_from = window ? std::max<int64_t>(0, unit.position + 1 - window) : 0;
  load_keys_and_values(t, unit, cache, seen_from, unit.position + unit.count);
  std::vector<float> sums(dim * W);
  configure_tiles(16);
  for (int64_t first = 0; first < t.u.count; first += W) {
    const int64_t count = std::min<int64_t>(W, t.u.count - first);
    float inverse[W];
    score_tiles(t, first);
    for (int64_t m = 0; m < count; m++) {
      const int64_t at = unit.position + (first + m) / group;
      inverse[m] = softmax(t.u, m, window ? std::max<int64_t>(0, at + 1 - window) : 0, at + 1);
      const float* weights = t.u.scores + m * t.u.stride;
      for (int64_t p = 0; p < t.u.last - t.u.start; p += kGroup)
        _mm512_store_si512(t.weights + p / kGroup * kTileBytes + m * 64, round_line(weights + p, 1.0f));
    }
    weigh_tiles(t, sums.data());
    for (int64_t m = 0; m < count; m++) {
      const int64_t row = unit.row + (first + m) / group, head = unit.head * group + (first + m) % group;
      for (int64_t d = 0; d < dim; d += W)
        storef(out + (row * shape.heads + head) * dim + d, loadf(sums.data() + d * W + m * W) * inverse[m]);
    }
  }
  _tile_release();
}

#endif

inline void attention(Pool& pool, const float* qkv, KvCache cache, const Batch& b, AttentionShape shape, float* out) {
#if defined(HK_AMX_BF16)
  if (attends_in_tiles(shape, cache.block_size)) {
    const int64_t queries = b.tokens > 64 ? 6 * W : W;  // few rows: more units; many: fewer conversions
    return each_unit(pool, b, shape, queries, [&](const Unit& unit) { attend_in_tiles(unit, qkv, cache, shape, out); });
  }
#endif
  each_unit(pool, b, shape, 2 * kQueries, [&](const Unit& unit) { attend(unit, qkv, cache, shape, out); });
}

}  // namespace hk
