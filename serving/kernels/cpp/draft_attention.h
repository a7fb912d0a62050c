// The attention of the draft model: one query at a time, keys and values as pairs of bfloat16.
//
// Reading keys and values takes most of a draft's time. Keys are stored in blocks of 16 positions: pair r holds dims
// 2 r and 2 r + 1, and r is the outer index, so that no sum crosses the lanes of a vector. Values are stored for two
// positions at a time: a pair holds the same dim of both. The second one is 0 until it is written, and has a weight of
// 0 if the query does not see it.
// Queries and weights are rounded to bfloat16 as well, whether or not the CPU can multiply such pairs (VDPBF16PS).
#pragma once

#include <algorithm>

#include "simd.h"

namespace hk {

constexpr int64_t kDraftHead = 32;  // width of a head
constexpr int64_t kDraftPairs = kDraftHead / 2;
constexpr int64_t kDraftBlock = 16;  // positions in a block of keys

inline uint32_t pair_bits(const BFloat16* x) {
  uint32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return pair;
}

inline uint32_t pair_of(float low, float high) {
  return round_to_bfloat16(low).bits | uint32_t(round_to_bfloat16(high).bits) << 16;
}

// sum + x.high · y.high + x.low · y.low in each lane.
inline vf add_pairs(vf sum, uint32_t x, vu y) {
  add_dot_bfloat16(sum, (vu)splat_int(int32_t(x)), y);
  return sum;
}

// scores[k] = query · keys[k] for all blocks that hold the first `count` keys.
inline void score_keys(const uint32_t* query, const uint32_t* keys, int64_t count, float* scores) {
  constexpr int64_t kVectors = kDraftBlock / W, kApart = 4;  // independent sums, to hide latency
  const int64_t last = (count - 1) / kDraftBlock;
  for (int64_t block = 0; block <= last; block += kApart) {
    const uint32_t* at[kApart];
    for (int64_t j = 0; j < kApart; j++) at[j] = keys + std::min(block + j, last) * kDraftBlock * kDraftPairs;
    vf sums[kApart][kVectors] = {};
    for (int64_t r = 0; r < kDraftPairs; r++)
      for (int64_t j = 0; j < kApart; j++)
        for (int64_t i = 0; i < kVectors; i++)
          sums[j][i] = add_pairs(sums[j][i], query[r], load<vu>(at[j] + r * kDraftBlock + i * W));
    for (int64_t j = 0; j < kApart; j++)
      for (int64_t i = 0; i < kVectors; i++)
        storef(scores + std::min(block + j, last) * kDraftBlock + i * W, sums[j][i]);
  }
}

// Attention of one head: `query` is scaled already. `scores` and `weights` have room for one block more than `count`.
inline void attend(const float* query, const uint32_t* keys, const uint32_t* values, int64_t count, float* scores,
                   BFloat16* weights, float* out) {
  constexpr int64_t kVectors = kDraftHead / W, kApart = 4;
  uint32_t pairs[kDraftPairs];
  for (int64_t r = 0; r < kDraftPairs; r++) pairs[r] = pair_of(query[2 * r], query[2 * r + 1]);
  score_keys(pairs, keys, count, scores);
  vf highest = splat(-3e38f), total = {}, sums[kApart][kVectors] = {};
  for (int64_t k = count; k % W; k++) scores[k] = -3e38f;
  for (int64_t k = 0; k < count; k += W) highest = max(highest, loadf(scores + k));
  highest = splat(largest(highest));
  for (int64_t k = 0; k < count; k += W) {
    const vf weight = exp(loadf(scores + k) - highest);
    total += weight;
    round_to_bfloat16(weight, weights + k);
  }
  weights[count] = {};
  const auto add = [&](int64_t j, int64_t pair) {
    for (int64_t i = 0; i < kVectors; i++)
      sums[j][i] = add_pairs(sums[j][i], pair_bits(weights + 2 * pair),
                             load<vu>(values + pair * kDraftHead + i * W));
  };
  const int64_t num_pairs = (count + 1) / 2;
  int64_t pair = 0;
  for (; pair + kApart <= num_pairs; pair += kApart)
    for (int64_t j = 0; j < kApart; j++) add(j, pair + j);
  for (int64_t j = 0; pair + j < num_pairs; j++) add(j, pair + j);
  const vf inverse = splat(1.0f / sum(total));
  for (int64_t i = 0; i < kVectors; i++)
    storef(out + i * W, ((sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i])) * inverse);
}

inline void store_key(const float* key, int64_t position, uint32_t* keys) {
  uint32_t* to = keys + position / kDraftBlock * kDraftBlock * kDraftPairs + position % kDraftBlock;
  for (int64_t r = 0; r < kDraftPairs; r++) to[r * kDraftBlock] = pair_of(key[2 * r], key[2 * r + 1]);
}

inline void store_value(const float* value, int64_t position, uint32_t* values) {
  uint32_t* to = values + position / 2 * kDraftHead;
  for (int64_t d = 0; d < kDraftHead; d++)
    to[d] = position % 2 ? (to[d] & 0xffff) | pair_of(0.0f, value[d]) : pair_of(value[d], 0.0f);
}

}  // namespace hk
