// The layout of the KV cache, and the kernel that writes to it.
//
// In float32 a block holds, for each KV head, keys [head_dim, block_size] and values [block_size, head_dim]. Where
// attention runs on AMX tiles or bfloat16 dot products, both are rounded to bfloat16 when they are stored, in the
// layout that tiles are loaded from. For every 16 positions there are
//   - head_dim / 32 tiles of keys: line r holds dims 2 r and 2 r + 1 of each position;
//   - head_dim / 16 half tiles of values: line r holds positions 2 r and 2 r + 1 of each dim.
#pragma once

#include <cstring>

#include "tiles_bf16.h"

namespace hk {

struct AttentionShape {
  int32_t heads, kv_heads, head_dim;
  int32_t window;    // sliding window; 0: none
  int32_t inputs;    // an Inputs value: with 16-bit floats or 8 bits, attention may round to bfloat16, too
};

// Whether keys and values are bfloat16: as the inputs of 4-bit matmuls with AMX, beside int8 inputs without it.
inline bool uses_tiles(AttentionShape shape, int64_t block_size) {
#if defined(HK_AMX_BF16)
  return shape.inputs == kBFloat16Inputs && shape.head_dim % 32 == 0 && block_size % W == 0;
#elif defined(HK_BF16_DOTS)
  return shape.inputs == kInt8Inputs && shape.head_dim % 32 == 0 && block_size % W == 0;
#else
  return false;
#endif
}

struct KvCache {
  void* data;
  int64_t block_size, kv_heads, head_dim;
  bool in_tiles;

  KvCache(void* data, int64_t block_size, AttentionShape shape)
      : data(data), block_size(block_size), kv_heads(shape.kv_heads), head_dim(shape.head_dim),
        in_tiles(uses_tiles(shape, block_size)) {}

  int64_t start(int64_t block, int64_t head) const { return (block * 2 * kv_heads + head) * block_size * head_dim; }
  float* keys(int64_t block, int64_t head) const { return static_cast<float*>(data) + start(block, head); }
  float* values(int64_t block, int64_t head) const { return keys(block, head + kv_heads); }

#if defined(HK_AMX_BF16) || defined(HK_BF16_DOTS)
  uint8_t* tile(int64_t block, int64_t head, int64_t offset) const {
    return static_cast<uint8_t*>(data) + 2 * (start(block, head) + offset / W * W * head_dim);
  }
  // The first tile of the 16 positions that contain `offset`; their other tiles follow.
  uint8_t* key_tiles(int64_t block, int64_t head, int64_t offset) const { return tile(block, head, offset); }
  uint8_t* value_tiles(int64_t block, int64_t head, int64_t offset) const {
    return tile(block, head + kv_heads, offset);
  }
#endif

  void store(int64_t block, int64_t head, int64_t offset, const float* key, const float* value) const {
#if defined(HK_AMX_BF16) || defined(HK_BF16_DOTS)
    if (in_tiles) return store_in_tiles(key_tiles(block, head, offset), value_tiles(block, head, offset),
                                        offset % W, key, value);
#endif
    float* to = keys(block, head) + offset;
    for (int64_t d = 0; d < head_dim; d++) to[d * block_size] = key[d];
    std::memcpy(values(block, head) + offset * head_dim, value, head_dim * sizeof(float));
  }

 private:
#if defined(HK_AMX_BF16)
  // Writes only this position's half of each line: another thread may be writing the other half.
  void store_in_tiles(uint8_t* keys, uint8_t* values, int64_t place, const float* key, const float* value) const {
    for (int64_t d = 0; d < head_dim; d += kPairs) round_row(key + d, keys + d / kPairs * kTileBytes, place);
    const __mmask32 mask = place % 2 ? 0xAAAAAAAA : 0x55555555;
    for (int64_t d = 0; d < head_dim; d += W) {
      const __m512i wide = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)loadf(value + d)));
      _mm512_mask_storeu_epi16(values + d * 32 + place / 2 * 64, mask, place % 2 ? _mm512_slli_epi32(wide, 16) : wide);
    }
  }
#elif defined(HK_BF16_DOTS)
  void store_in_tiles(uint8_t* keys, uint8_t* values, int64_t place, const float* key, const float* value) const {
    BFloat16 rounded[W];
    for (int64_t d = 0; d < head_dim; d += W) {
      round_to_bfloat16(loadf(key + d), rounded);
      for (int i = 0; i < W; i += 2) std::memcpy(keys + (d + i) * 32 + place * 4, rounded + i, 4);
      round_to_bfloat16(loadf(value + d), rounded);
      for (int i = 0; i < W; i++) std::memcpy(values + d * 32 + place / 2 * 64 + i * 4 + place % 2 * 2, rounded + i, 2);
    }
  }
#endif
};

// Rotates queries in place, rotates keys, and stores keys and values. Row t uses entry at(t) of the cos and sin tables.
template <class F>
inline void rotary_and_store_kv(Pool& pool, float* qkv, const float* cos, const float* sin, F at, KvCache cache,
                                const int32_t* slots, AttentionShape shape, int64_t rows) {
  const int64_t dim = shape.head_dim, half = dim / 2, size = cache.block_size;
  const int64_t stride = (shape.heads + 2 * shape.kv_heads) * dim;
  // Neighbouring rows share cache lines of keys, which one thread should write.
  const int64_t rows_per_unit = rows > 64 ? 16 : 4;
  pool.each_range(rows, rows_per_unit, [&](int64_t first, int64_t last) {
    float* rotated = scratch(dim);
    for (int64_t t = first; t < last; t++) {
      float* row = qkv + t * stride;
      const float *cosines = cos + at(t) * half, *sines = sin + at(t) * half;
      for (int64_t h = 0; h < shape.heads; h++)
        rotate(row + h * dim, cosines, sines, half, row + h * dim);
      const int64_t block = slots[t] / size, offset = slots[t] % size;
      for (int64_t h = 0; h < shape.kv_heads; h++) {
        const float* key = row + (shape.heads + h) * dim;
        rotate(key, cosines, sines, half, rotated);
        cache.store(block, h, offset, rotated, key + shape.kv_heads * dim);
      }
    }
  });
}

}  // namespace hk
