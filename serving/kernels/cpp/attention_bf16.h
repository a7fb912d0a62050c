// The attention of attention.h on AMX tiles. Queries, keys, values and attention weights are rounded to bfloat16;
// scores, exponentials and sums stay float32.
//
// The cache already holds keys and values in the layout of tiles. Positions are processed in groups of 16 that start
// at multiples of 16, so a query's result is the same, bit for bit, whatever the chunking and the other rows are.
#pragma once

#include "attention_dots.h"
#include "awq_bf16.h"

namespace hk {

#if defined(HK_AMX_BF16)

// Tiles 0 … 3: sums; 4: 16 queries; 5: keys; 6: half a tile of values; 7: weights of 16 positions.
inline void configure_attention_tiles() {
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 32};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8, 16};
  } config;
  memory_barrier();
  _tile_loadconfig(&config);
}

// The buffers of one unit. Its queries are ordered by head: query i is row i % unit.count of head i / unit.count
// within the group that shares the keys. `u.scores` holds one tile of queries, from position u.start = u.first on.
struct Tiled {
  Queries u;
  const Unit& unit;
  const KvCache& cache;
  int64_t seen_to;             // end of the context: no query of the unit sees a position from here on
  uint8_t *queries, *weights;  // [count / 16, dim / 32] tiles; [16, width] bfloat16
  uint8_t* end;                // zero-padded copy of the values of the last 16 positions, if some are past seen_to
  float* sums;                 // [dim / 16, 16 queries, 16]: weighted sums of values
  int64_t width() const { return u.last - u.start; }
  int64_t block(int64_t p) const { return unit.blocks[p / cache.block_size]; }
  const uint8_t* keys(int64_t p) const { return cache.key_tiles(block(p), unit.head, p % cache.block_size); }
  const uint8_t* stored_values(int64_t p) const {
    return cache.value_tiles(block(p), unit.head, p % cache.block_size);
  }
  const uint8_t* values(int64_t p) const { return p + W > seen_to ? end : stored_values(p); }
  int64_t row(int64_t query) const { return query % unit.count; }
  int64_t head(int64_t query) const { return unit.head * (u.count / unit.count) + query / unit.count; }
};

// Copies the last 16 positions' values with 0 for positions past the context, whose memory is uninitialized (it may
// hold NaN, and 0 · NaN is NaN).
inline void copy_last_values(const Tiled& t) {
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
  Tiled t{{}, unit, cache, unit.position + unit.count, nullptr, nullptr, nullptr, nullptr};
  Queries& u = t.u;
  u.count = unit.count * group;
  u.first = u.start = seen_from / W * W;
  u.last = (t.seen_to + W - 1) / W * W;
  u.stride = std::max(t.width(), dim) + W;  // an odd number of cache lines, so that rows use different cache sets
  if (u.stride / W % 2 == 0) u.stride += W;
  const int64_t tall = (u.count + W - 1) / W * W;
  u.scores = scratch(W * u.stride + dim * W + (tall * dim + W * u.stride + dim * W) / 2);
  t.sums = u.scores + W * u.stride;
  t.queries = reinterpret_cast<uint8_t*>(t.sums + dim * W);
  t.weights = t.queries + tall * dim * 2;
  t.end = t.weights + W * u.stride * 2;
  if (t.seen_to % W) copy_last_values(t);
  return t;
}

// The 16 floats at x and the 16 at x + next, scaled and rounded to bfloat16.
inline __m512i round_line(const float* x, int64_t next, float scale) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)(loadf(x + next) * scale), (__m512)(loadf(x) * scale));
}

inline void load_queries(const Tiled& t, const float* qkv, AttentionShape shape) {
  const int64_t dim = shape.head_dim;
  const int64_t ld = (shape.heads + 2 * shape.kv_heads) * dim;
  const float scale = 1.0f / std::sqrt(float(dim));
  for (int64_t i = 0; i < (t.u.count + W - 1) / W * W; i++) {
    const int64_t at = std::min(i, t.u.count - 1);  // the tile is padded with copies of the last query
    const float* from = qkv + (t.unit.row + t.row(at)) * ld + t.head(at) * dim;
    uint8_t* to = t.queries + i / W * W * dim * 2 + i % W * 64;
    for (int64_t d = 0; d < dim; d += kPairs, to += kTileBytes) _mm512_store_si512(to, round_line(from + d, W, scale));
  }
}

// Scores of 16 queries for positions u.start … last - 1, four groups of 16 positions at a time.
inline void score_tiles(const Tiled& t, const uint8_t* queries, int64_t last) {
  const int64_t dim = t.cache.head_dim, stride = t.u.stride * sizeof(float);
  for (int64_t p = t.u.start; p < last; p += 4 * W) {
    const int64_t count = std::min<int64_t>(4, (last - p) / W);
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

// e^x for x ≤ 0, which underflows to 0: 2^n times a polynomial in the rest (relative error 7.5e-8).
inline __m512 exp_nonpositive(__m512 x) {
  x = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f));
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(1.3276470686e-3f), r, _mm512_set1_ps(9.6755413240e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5507132775e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022119724e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314696706e-1f));
  return _mm512_scalef_ps(_mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f)), n);
}

// Turns the scores of query m of a tile into unnormalized bfloat16 weights and returns 1 / their sum. Positions
// u.start … last - 1 get a weight; it is 0 outside low … high - 1, which the query sees.
inline float weigh_scores(const Tiled& t, int64_t m, int64_t low, int64_t high, int64_t last) {
  const float* scores = t.u.scores + m * t.u.stride - t.u.start;
  uint8_t* weights = t.weights + (m * t.u.stride - t.u.start) * 2;
  const auto seen = [&](int64_t p) {
    const uint32_t from = low > p ? 0xFFFFu << std::min<int64_t>(W, low - p) : 0xFFFFu;
    return __mmask16(high < p + W ? from & ~(0xFFFFu << std::max<int64_t>(0, high - p)) : from);
  };
  const int64_t begin = low / W * W, end = std::min(last, (high + W - 1) / W * W);
  __m512 top = _mm512_set1_ps(-INFINITY);
  for (int64_t p = begin; p < end; p += W) top = _mm512_mask_max_ps(top, seen(p), top, _mm512_loadu_ps(scores + p));
  const __m512 highest = _mm512_set1_ps(_mm512_reduce_max_ps(top));
  __m512 total = _mm512_setzero_ps();
  for (int64_t p = t.u.start; p < last; p += W) {
    const __m512 power = exp_nonpositive(_mm512_sub_ps(_mm512_loadu_ps(scores + p), highest));
    const __m512 weight = _mm512_maskz_mov_ps(seen(p), power);
    total = _mm512_add_ps(total, weight);
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights + p * 2), (__m256i)_mm512_cvtneps_pbh(weight));
  }
  return 1.0f / sum((vf)total);
}

// Fills t.sums from positions u.start … last - 1. Half a tile of values is 16 dims wide.
inline void weigh_tiles(const Tiled& t, int64_t last) {
  constexpr int64_t kHalf = kTileBytes / 2;
  memory_barrier();
  for (int64_t c = 0; c < t.cache.head_dim / W; c += 4) {
    const bool four = c + 4 <= t.cache.head_dim / W;
    float* sums = t.sums + c * W * W;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = t.u.start; p < last; p += W) {
      const uint8_t* values = t.values(p) + c * kHalf;
      _tile_loadd(7, t.weights + (p - t.u.start) * 2, t.u.stride * 2);
      _tile_loadd(6, values, 64);
      _tile_dpbf16ps(0, 7, 6);
      _tile_loadd(6, values + kHalf, 64);
      _tile_dpbf16ps(1, 7, 6);
      if (!four) continue;
      _tile_loadd(6, values + 2 * kHalf, 64);
      _tile_dpbf16ps(2, 7, 6);
      _tile_loadd(6, values + 3 * kHalf, 64);
      _tile_dpbf16ps(3, 7, 6);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + W * W, 64);
    if (four) _tile_stored(2, sums + 2 * W * W, 64);
    if (four) _tile_stored(3, sums + 3 * W * W, 64);
  }
  memory_barrier();
}

// Calls use(t, first, count, inverse) for up to 16 queries from `first` on; their results are t.sums · inverse.
template <class F>
inline void attend_in_tiles(const Unit& unit, const float* qkv, const KvCache& cache, AttentionShape shape, F use) {
  const int64_t window = shape.window;
  const Tiled t = make_tiled(unit, cache, shape);
  load_queries(t, qkv, shape);
  configure_attention_tiles();
  for (int64_t first = 0; first < t.u.count; first += W) {
    const int64_t count = std::min<int64_t>(W, t.u.count - first);
    int64_t last = 0;
    for (int64_t m = 0; m < count; m++) last = std::max(last, unit.position + t.row(first + m) + 1);
    last = (last + W - 1) / W * W;
    float inverse[W] = {};
    score_tiles(t, t.queries + first * cache.head_dim * 2, last);
    for (int64_t m = 0; m < count; m++) {
      const int64_t at = unit.position + t.row(first + m);
      inverse[m] = weigh_scores(t, m, window ? std::max<int64_t>(0, at + 1 - window) : 0, at + 1, last);
    }
    weigh_tiles(t, last);
    use(t, first, count, inverse);
  }
  _tile_release();
}

template <class F>
inline void each_attended(Pool& pool, const float* qkv, const KvCache& cache, const Batch& b, AttentionShape shape,
                          F use) {
  // With few rows, small units keep all threads busy; with many rows, large units save setup.
  const int64_t queries = b.tokens > 64 ? 6 * W : b.tokens > 16 ? 3 * W : W;
  each_unit(pool, b, shape, queries, [&](const Unit& unit) { attend_in_tiles(unit, qkv, cache, shape, use); });
}

// Stores the results of up to 16 queries as the bfloat16 tiles that the next matmul reads. 16 aligned rows of one head
// are written as whole tiles.
inline void store_rounded(const Tiled& t, int64_t first, int64_t count, const float* inverse, const BFloat16Rows& out) {
  const int64_t dim = t.cache.head_dim, row = t.unit.row + t.row(first);
  const bool whole = count == W && row % W == 0 && t.row(first) + W <= t.unit.count;
  for (int64_t d = 0; d < dim; d += kPairs) {
    __m512 lines[16];
#pragma GCC unroll 16
    for (int m = 0; m < 16; m++) lines[m] = (__m512)round_line(t.sums + (d + m) * W, W * W, inverse[m]);
    if (whole) {
      transpose(lines);
      uint8_t* tile = out.tile(row, t.head(first) * dim + d);
      for (int r = 0; r < 16; r++) _mm512_store_ps(tile + r * 64, lines[r]);
      continue;
    }
    for (int64_t m = 0; m < count; m++) {
      const int64_t at = t.unit.row + t.row(first + m);
      scatter_line((__m512i)lines[m], out.tile(at, t.head(first + m) * dim + d), at);
    }
  }
}

inline void attention(Pool& pool, const float* qkv, const KvCache& cache, const Batch& b, AttentionShape shape,
                      const BFloat16Rows& out) {
  each_attended(pool, qkv, cache, b, shape, [&](const Tiled& t, int64_t first, int64_t count, const float* inverse) {
    store_rounded(t, first, count, inverse, out);
  });
}

#endif

inline void attention(Pool& pool, const float* qkv, const KvCache& cache, const Batch& b, AttentionShape shape,
                      float* out) {
#if defined(HK_AMX_BF16)
  if (cache.in_tiles)
    return each_attended(pool, qkv, cache, b, shape, [&](const Tiled& t, int64_t first, int64_t n, const float* by) {
      const int64_t dim = shape.head_dim;
      for (int64_t m = 0; m < n; m++) {
        float* to = out + ((t.unit.row + t.row(first + m)) * shape.heads + t.head(first + m)) * dim;
        for (int64_t d = 0; d < dim; d += W) storef(to + d, loadf(t.sums + (d + m) * W) * by[m]);
      }
    });
#elif defined(HK_BF16_DOTS)
  if (cache.in_tiles)  // with many rows, large units save reading keys and values
    return each_unit(pool, b, shape, (b.tokens > 64 ? 4 : 2) * kQueries,
                     [&](const Unit& unit) { attend_in_pairs(unit, qkv, cache, shape, out); });
#endif
  each_unit(pool, b, shape, 2 * kQueries, [&](const Unit& unit) { attend(unit, qkv, cache, shape, out); });
}

}  // namespace hk
