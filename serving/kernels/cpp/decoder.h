// All decoder layers in one parallel region: the same kernels in the same order as layer by layer.
#pragma once

#include "attention.h"
#include "awq_amx.h"
#include "dense.h"
#include "elementwise.h"

namespace hk {

constexpr int kMaxParts = 3;  // queries, keys and values

// AWQ (parts = 0), or dense parts that share their input.
struct Linear {
  Awq awq;
  int64_t parts;
  Dense dense[kMaxParts];
};

struct Layer {
  const float *input_norm, *post_attention_norm;
  const Linear *qkv, *output, *gate_up, *down;
};

struct Decoder {
  const Layer* layers;
  int64_t num_layers;
  const float* final_norm;
  AttentionShape shape;
  int64_t hidden, intermediate;
  float eps;
};

// One pass: rows of the batch, its angles, and a cache a layer.
struct Pass {
  float* hidden;  // [tokens, hidden], the embedding; becomes the residual
  const float *cos, *sin;
  float* const* kv_caches;
  const int32_t* slot_mapping;
  Batch batch;
  float* workspace;
  float* out;  // [tokens, hidden], normed
};

inline int64_t workspace_floats(const Decoder& d, int64_t tokens) {
  const int64_t heads = d.shape.heads, all = heads + 2 * d.shape.kv_heads;
  return tokens * (2 * d.hidden + (heads + all) * d.shape.head_dim + 3 * d.intermediate);
}

// What awq_gemm needs in the pool's shared buffer, for the widest input.
inline int64_t shared_floats(const Decoder& d, int64_t tokens) {
  int64_t most = 0;
  for (int64_t i = 0; i < d.num_layers; i++)
    for (const Linear* w : {d.layers[i].qkv, d.layers[i].output, d.layers[i].gate_up, d.layers[i].down})
      if (w->parts == 0) most = std::max(most, Fixed::floats(w->awq, tokens));
  return most;
}

inline void linear(Pool& pool, const Linear& w, const float* x, int64_t rows, float* out) {
  if (w.parts == 0) return awq_gemm(pool, w.awq, x, rows, out);
  int64_t total = 0, start = 0;
  for (int64_t i = 0; i < w.parts; i++) total += w.dense[i].out;
  for (int64_t i = 0; i < w.parts; start += w.dense[i++].out)
    dense_gemm(pool, w.dense[i], x, rows, out + start, total);
}

// Run by every thread of the pool.
inline void decode(Pool& pool, const Decoder& d, const Pass& p) {
  const int64_t rows = p.batch.tokens, dim = d.shape.head_dim;
  float* normed = p.workspace;
  float* branch = normed + rows * d.hidden;
  float* qkv = branch + rows * d.hidden;
  float* attended = qkv + rows * (d.shape.heads + 2 * d.shape.kv_heads) * dim;
  float* gate_up = attended + rows * d.shape.heads * dim;
  float* activated = gate_up + rows * 2 * d.intermediate;
  for (int64_t i = 0; i < d.num_layers; i++) {
    const Layer& layer = d.layers[i];
    const KvCache cache{p.kv_caches[i], p.batch.block_size, d.shape.kv_heads, dim};
    add_rms_norm(pool, i ? branch : nullptr, p.hidden, layer.input_norm, d.eps, rows, d.hidden, normed);
    linear(pool, *layer.qkv, normed, rows, qkv);
    rotary_and_store_kv(pool, qkv, p.cos, p.sin, cache, p.slot_mapping, d.shape, rows);
    paged_attention(pool, qkv, cache, p.batch, d.shape, attended);
    linear(pool, *layer.output, attended, rows, branch);
    add_rms_norm(pool, branch, p.hidden, layer.post_attention_norm, d.eps, rows, d.hidden, normed);
    linear(pool, *layer.gate_up, normed, rows, gate_up);
    silu_and_mul(pool, gate_up, rows, d.intermediate, activated);
    linear(pool, *layer.down, activated, rows, branch);
  }
  add_rms_norm(pool, branch, p.hidden, d.final_norm, d.eps, rows, d.hidden, p.out);
}

}  // namespace hk
