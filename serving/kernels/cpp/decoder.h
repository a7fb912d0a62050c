// The embedding and all decoder layers in one parallel region; results are those of calling the kernels one by one.
#pragma once

#include "attention_bf16.h"
#include "dense_bf16.h"
#include "elementwise.h"
#include "lora.h"
#include "qkv.h"

namespace hk {

// An AWQ weight (parts = 0), or dense matrices that share their input.
struct Linear {
  Awq awq;
  int64_t parts;
  Dense dense[kMaxParts];
  const float* bias;  // [out] added last; null where there is none, and for queries, keys and values (QkvAdjustment)
};

struct Layer {
  const float *input_norm, *post_attention_norm;
  const Linear *qkv, *output, *gate_up, *down;
  QkvAdjustment adjustment;
};

struct Decoder {
  const void* embedding;  // [vocab, hidden]
  int32_t dtype;
  int64_t vocab;
  const float *cos, *sin;  // [num_angles, head_dim / 2]
  int64_t num_angles;
  const Layer* layers;
  int64_t num_layers;
  const float* final_norm;
  AttentionShape shape;
  int64_t hidden, intermediate;
  float eps;
};

// The arguments of one forward pass.
struct Pass {
  const int32_t *ids, *positions;
  void* const* kv_caches;
  const int32_t* slot_mapping;
  Batch batch;
  float* workspace;
  float* out;  // [tokens, hidden], after the final norm
  const LoraBatch* lora;  // null if no row has an adapter
};

inline int64_t workspace_floats(const Decoder& d, int64_t tokens) {
  const int64_t heads = d.shape.heads, all = heads + 2 * d.shape.kv_heads, rows = (tokens + 15) / 16 * 16;
  return rows * (3 * d.hidden + (heads + all) * d.shape.head_dim + 3 * d.intermediate);
}

// What matmuls need in the pool's shared buffer, for the widest input.
inline int64_t shared_floats(const Decoder& d, int64_t tokens) {
  int64_t floats = 0;
  for (int64_t i = 0; i < d.num_layers; i++)
    for (const Linear* w : {d.layers[i].qkv, d.layers[i].output, d.layers[i].gate_up, d.layers[i].down})
      floats = std::max(floats, w->parts ? dense_floats(w->dense[0], tokens) : Int16Rows::floats(w->awq, tokens));
  return floats;
}

inline void linear(Pool& pool, const Linear& w, const float* x, int64_t rows, float* out) {
  if (w.parts == 0) return awq_gemm(pool, w.awq, x, rows, out);
  int64_t total = 0, start = 0;
  bool rounded = false;
  for (int64_t i = 0; i < w.parts; i++) total += w.dense[i].out;
  for (int64_t i = 0; i < w.parts; start += w.dense[i++].out) {
    if (rounds_inputs(w.dense[i]) && !rounded) {  // all parts have the same inputs
      round_inputs(pool, w.dense[i], x, rows);
      rounded = true;
    }
    multiply_dense(pool, w.dense[i], x, rows, out + start, total);
  }
}

// The linear layers of a decoder layer, by the place of their first projection in it.
enum Place : int64_t { kQkv = 0, kOutput = 3, kGateUp = 4, kDown = 6 };

inline LoraSite lora_site(const Decoder& d, const Layer& layer, Place place) {
  const int64_t first = (&layer - d.layers) * kProjections + place, dim = d.shape.head_dim;
  const int64_t queries = d.shape.heads * dim, keys = d.shape.kv_heads * dim;
  if (place == kQkv) return {first, 3, d.hidden, {queries, keys, keys}};
  if (place == kOutput) return {first, 1, queries, {d.hidden}};
  if (place == kGateUp) return {first, 2, d.hidden, {d.intermediate, d.intermediate}};
  return {first, 1, d.intermediate, {d.hidden}};
}

inline const Linear& linear_at(const Layer& layer, Place place) {
  if (place == kQkv) return *layer.qkv;
  if (place == kOutput) return *layer.output;
  return place == kGateUp ? *layer.gate_up : *layer.down;
}

inline void add_bias(Pool& pool, const float* bias, int64_t rows, int64_t width, float* out) {
  pool.each_range(rows, 8, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++) add_row(out + t * width, bias, width);
  });
}

// A linear layer, with the adapters of those rows that have one, and its bias.
inline void adapted(Pool& pool, const Decoder& d, const Pass& p, const Layer& layer, Place place, const float* x,
                    float* out) {
  const Linear& w = linear_at(layer, place);
  linear(pool, w, x, p.batch.tokens, out);
  if (p.lora) add_lora(pool, *p.lora, lora_site(d, layer, place), x, out);
  const int64_t width = place == kGateUp ? 2 * d.intermediate : d.hidden;
  if (w.bias) add_bias(pool, w.bias, p.batch.tokens, width, out);
}

#if defined(HK_AMX_BF16)
// Matmuls on tiles of bfloat16 keep their inputs in tiles and add to the residual themselves, with the same bits. An
// adapter or a bias needs both in float32.
inline bool tiled(const Pass& p, const Linear& w) {
  return !p.lora && !w.bias && w.parts == 0 && w.awq.inputs == kBFloat16Inputs;
}
inline BFloat16Rows tiles_in(float* room, int64_t in) { return {reinterpret_cast<uint8_t*>(room), in}; }
#endif

// hidden += branch, if there is one; out = w · norm(hidden). `normed` has room for whole tiles of 16 rows.
inline void norm_and_multiply(Pool& pool, const Decoder& d, const Pass& p, float* hidden, const float* branch,
                              const float* norm, const Layer& layer, Place place, float* normed, float* out) {
  const int64_t rows = p.batch.tokens;
#if defined(HK_AMX_BF16)
  const Linear& w = linear_at(layer, place);
  if (tiled(p, w) && !branch) {
    const BFloat16Rows halves = tiles_in(normed, d.hidden);
    norm_rows(pool, hidden, norm, d.eps, rows, halves);
    return multiply_rows(pool, w.awq, halves, rows, {out, false});
  }
#endif
  add_rms_norm(pool, branch, hidden, norm, d.eps, rows, d.hidden, normed);
  adapted(pool, d, p, layer, place, normed, out);
}

// The output of attention or of the MLP that is still to be added to hidden; null if it has been added already.
using Branch = const float*;

inline Branch attend_and_multiply(Pool& pool, const Decoder& d, const Pass& p, const Layer& layer,
                                  const KvCache& cache, float* hidden, const float* qkv, float* attended,
                                  float* branch) {
#if defined(HK_AMX_BF16)
  if (tiled(p, *layer.output)) {
    const int64_t rows = p.batch.tokens;
    const int64_t width = d.shape.heads * d.shape.head_dim;
    const BFloat16Rows halves = tiles_in(cache.in_tiles ? attended : pool.shared(), width);
    if (cache.in_tiles) {
      attention(pool, qkv, cache, p.batch, d.shape, halves);
    } else {
      attention(pool, qkv, cache, p.batch, d.shape, attended);
      round_rows(pool, attended, rows, halves);
    }
    multiply_rows(pool, layer.output->awq, halves, rows, {hidden, true});
    return nullptr;
  }
#endif
  attention(pool, qkv, cache, p.batch, d.shape, attended);
  adapted(pool, d, p, layer, kOutput, attended, branch);
  return branch;
}

// down · (silu(gate) · up) of norm(hidden + before). Where the weights allow it, intermediate results stay in bfloat16
// tiles: for hundreds of rows, writing them out as float32 would take longer than the products.
inline Branch mlp(Pool& pool, const Decoder& d, const Pass& p, const Layer& layer, float* hidden, Branch before,
                  float* branch, float* normed, float* gate_up, float* activated) {
  const int64_t rows = p.batch.tokens;
#if defined(HK_AMX_BF16)
  if (tiled(p, *layer.gate_up) && tiled(p, *layer.down) && d.intermediate % kPairs == 0 && !before) {
    const BFloat16Rows in = tiles_in(normed, d.hidden), between = tiles_in(gate_up, d.intermediate);
    norm_rows(pool, hidden, layer.post_attention_norm, d.eps, rows, in);
    gate_and_up(pool, layer.gate_up->awq, in, rows, between);
    multiply_rows(pool, layer.down->awq, between, rows, {hidden, true});
    return nullptr;
  }
#endif
  norm_and_multiply(pool, d, p, hidden, before, layer.post_attention_norm, layer, kGateUp, normed, gate_up);
  const Linear& down = *layer.down;
  if (!p.lora && !down.bias && down.parts == 0 && down.awq.inputs == kInt8Inputs) {
    activate_and_multiply(pool, down.awq, gate_up, rows, branch);
    return branch;
  }
  silu_and_mul(pool, gate_up, rows, d.intermediate, activated);
  adapted(pool, d, p, layer, kDown, activated, branch);
  return branch;
}

// Called by every thread of the pool.
inline void decode(Pool& pool, const Decoder& d, const Pass& p) {
  const int64_t rows = p.batch.tokens, room = (rows + 15) / 16 * 16, dim = d.shape.head_dim;
  float* hidden = p.workspace;  // the residual
  float* normed = hidden + room * d.hidden;
  float* branch = normed + room * d.hidden;
  float* qkv = branch + room * d.hidden;
  float* attended = qkv + room * (d.shape.heads + 2 * d.shape.kv_heads) * dim;
  float* gate_up = attended + room * d.shape.heads * dim;
  float* activated = gate_up + room * 2 * d.intermediate;
  const auto at = [&](int64_t row) { return int64_t{p.positions[row]}; };
  with_type(d.embedding, d.dtype, [&](auto table) { embedding(pool, p.ids, table, rows, d.hidden, hidden); });
  Branch pending = nullptr;
  for (int64_t i = 0; i < d.num_layers; i++) {
    const Layer& layer = d.layers[i];
    const KvCache cache(p.kv_caches[i], p.batch.block_size, d.shape);
    norm_and_multiply(pool, d, p, hidden, pending, layer.input_norm, layer, kQkv, normed, qkv);
    adjust_qkv(pool, qkv, layer.adjustment, d.shape, rows);
    rotary_and_store_kv(pool, qkv, d.cos, d.sin, at, cache, p.slot_mapping, d.shape, rows);
    pending = attend_and_multiply(pool, d, p, layer, cache, hidden, qkv, attended, branch);
    pending = mlp(pool, d, p, layer, hidden, pending, branch, normed, gate_up, activated);
  }
  add_rms_norm(pool, pending, hidden, d.final_norm, d.eps, rows, d.hidden, p.out);
}

}  // namespace hk
