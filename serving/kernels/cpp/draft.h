// The draft model: a small transformer over the tokens of one request, on one thread.
//
// The architecture is Llama's (Touvron et al. 2023) with as many key heads as query heads. A token's input vector is a
// projection of the large model's embedding, computed when the token first occurs; the same vectors are the output
// embedding.
#pragma once

#include <utility>
#include <vector>

#include "draft_attention.h"
#include "draft_product.h"

namespace hk {

constexpr float kDraftEps = 1e-5f;
constexpr float kVectorEps = 1e-12f;  // far below any embedding's mean square: only avoids NaN for a vector of zeros

// Matrices are in the layout of `prepare_weights`.
struct DraftLayer {
  const float* input_norm;
  const void* qkv;  // [3 size, size]
  const void* output;
  const float* post_attention_norm;
  const void* gate_up;  // [2 hidden, size]
  const void* down;     // [size, hidden]
};

// In the training data, `first` and `second` were always followed by `third`.
struct Trigram {
  int32_t first, second, third;
};

struct DraftModel {
  const void* embedding;  // [vocab, width]
  int32_t dtype;
  int64_t vocab, width, padded, size, hidden, num_layers, capacity;
  const DraftLayer* layers;
  const float* final_norm;
  const void* head;     // [size, size]
  const void* project;  // [size, padded], 0 from column `width` on
  const Half* bias;     // [width]
  const float* cos;     // [capacity, kDraftHead / 2]
  const float* sin;
  float* vectors;         // [vocab, size]; the first num_vectors are filled
  float* biases;          // [vocab]; likewise
  int32_t* vector_index;  // [vocab]: 1 + the index of the token's vector; 0: not computed yet
  float* last_hidden;     // [size]: output of the layers for the last token of the last step
  const Trigram* trigrams;  // in ascending order
  int64_t num_trigrams;
  int64_t num_vectors;
};

// One call. The tokens `ids` are appended at position `start`, overwriting what the cache holds from there on; then the
// candidates for the next token are ranked. Without ids, candidates are ranked again after the last call's tokens.
// While the likeliest candidate has at least the probability `min_confidence`, it is generated as the next token,
// followed by the tokens that trigrams give, up to `max_generated` tokens; the top candidates are those that follow.
struct DraftStep {
  const int32_t* ids;
  int64_t count, start;
  int64_t bidirectional;  // 1: all of these tokens see each other; 0: causal
  uint32_t* kv;           // [num_layers, 2, size / kDraftHead, capacity * kDraftPairs], as in draft_attention.h
  const int32_t* candidates;
  int64_t num_candidates;
  const uint32_t* allowed;  // one bit for each token of the vocabulary, or null; restricts the candidates
  int32_t* top_tokens;      // out: [num_top], likeliest first
  float* top_probabilities;  // out: [num_top], among all candidates
  int64_t num_top;           // in: room; out: how many there are
  float min_confidence;
  int64_t max_generated;
  int32_t* generated;     // out: [max_generated]
  float* probabilities;   // out: [max_generated], of the generated tokens
  int64_t num_generated;  // out
};

inline const float* vector_of(const DraftModel& m, int32_t token) {
  return m.vectors + (m.vector_index[token] - 1) * m.size;
}

// Projects and normalizes the embeddings of the tokens that have no vector yet.
inline void compute_vectors(DraftModel& m, const int32_t* tokens, int64_t count) {
  std::vector<int32_t> new_tokens;
  for (int64_t i = 0; i < count; i++) {
    if (m.vector_index[tokens[i]]) continue;
    new_tokens.push_back(tokens[i]);
    m.vector_index[tokens[i]] = static_cast<int32_t>(m.num_vectors + new_tokens.size());
  }
  const int64_t rows = new_tokens.size();
  if (!rows) return;
  float *vectors = m.vectors + m.num_vectors * m.size, *biases = m.biases + m.num_vectors;
  m.num_vectors += rows;
  std::vector<float> x(rows * m.padded), ones(m.size, 1.0f);
  for (int64_t t = 0; t < rows; t++) {
    float* row = &x[t * m.padded];
    vf bias = {};
    with_type(m.embedding, m.dtype, [&](auto table) {
      const auto* entry = table + new_tokens[t] * m.width;
      if (t + 1 < rows) prefetch(table + new_tokens[t + 1] * m.width, m.width * sizeof(*table));
      for (int64_t i = 0; i < m.width; i += W) {
        const vf v = widen_n(entry + i, m.width - i);
        storef_n(row + i, v, m.width - i);
        bias = fma(v, widen_n(m.bias + i, m.width - i), bias);
      }
    });
    biases[t] = sum(bias);
  }
  draft_product(true, m.project, m.size, m.padded, x.data(), rows, vectors);
  for (int64_t t = 0; t < rows; t++)
    norm_row(vectors + t * m.size, ones.data(), kVectorEps, m.size, vectors + t * m.size);
}

// For one token's queries, keys and values [3, size]: rotates and scales the queries in place; rotates the keys and
// stores keys and values.
inline void store_rotated(const DraftModel& m, int64_t position, float* qkv, uint32_t* keys) {
  const float *cos = m.cos + position * kDraftHead / 2, *sin = m.sin + position * kDraftHead / 2;
  const float scale = 1.0f / std::sqrt(float(kDraftHead));
  float rotated[kDraftHead];
  for (int64_t at = 0; at < m.size; at += kDraftHead) {
    float* query = qkv + at;
    uint32_t* head = keys + at / 2 * m.capacity;
    rotate(query + m.size, cos, sin, kDraftHead / 2, rotated);
    store_key(rotated, position, head);
    store_value(query + 2 * m.size, position, head + m.capacity * m.size / 2);
    rotate(query, cos, sin, kDraftHead / 2, query);
    for (int64_t d = 0; d < kDraftHead; d += W) storef(query + d, loadf(query + d) * scale);
  }
}

inline void draft_layer(const DraftModel& m, const DraftLayer& layer, const DraftStep& s, bool cold, uint32_t* keys,
                        float* x, std::vector<float>& scratch) {
  const int64_t n = s.count, size = m.size, hidden = m.hidden;
  const int64_t score_room = m.capacity + kDraftBlock;
  scratch.resize(n * (2 * size + std::max(3 * size, 3 * hidden)) + score_room / 2 * 3);
  float *normed = scratch.data(), *mixed = normed + n * size, *wide = mixed + n * size;
  float *active = wide + 2 * n * hidden, *scores = scratch.data() + scratch.size() - score_room / 2 * 3;
  BFloat16* weights = reinterpret_cast<BFloat16*>(scores + score_room);
  for (int64_t t = 0; t < n; t++) norm_row(x + t * size, layer.input_norm, kDraftEps, size, normed + t * size);
  draft_product(cold, layer.qkv, 3 * size, size, normed, n, wide);
  for (int64_t t = 0; t < n; t++) store_rotated(m, s.start + t, wide + t * 3 * size, keys);
  for (int64_t at = 0; at < size; at += kDraftHead)
    for (int64_t t = 0; t < n; t++) {
      const uint32_t *head_keys = keys + at / 2 * m.capacity, *head_values = head_keys + m.capacity * size / 2;
      const int64_t seen = s.start + (s.bidirectional ? n : t + 1);
      attend(wide + t * 3 * size + at, head_keys, head_values, seen, scores, weights, mixed + t * size + at);
    }
  draft_product(cold, layer.output, size, size, mixed, n, normed);
  add_row(x, normed, n * size);
  for (int64_t t = 0; t < n; t++)
    norm_row(x + t * size, layer.post_attention_norm, kDraftEps, size, normed + t * size);
  draft_product(cold, layer.gate_up, 2 * hidden, size, normed, n, wide);
  for (int64_t t = 0; t < n; t++)
    for (int64_t i = 0; i < hidden; i += W) {
      const float* gate = wide + t * 2 * hidden + i;
      storef(active + t * hidden + i, silu(loadf(gate)) * loadf(gate + hidden));
    }
  draft_product(cold, layer.down, size, hidden, active, n, normed);
  add_row(x, normed, n * size);
}

constexpr int64_t kCandidatesAhead = 16;  // candidates to prefetch

// Finds the likeliest candidates to follow the last token, and their probabilities among all candidates.
inline void rank_candidates(const DraftModel& m, DraftStep& s, bool cold) {
  std::vector<int32_t> tokens;
  tokens.reserve(s.num_candidates);
  for (int64_t i = 0; i < s.num_candidates; i++) {
    const int32_t token = s.candidates[i];
    if (!s.allowed || s.allowed[token / 32] >> token % 32 & 1) tokens.push_back(token);
  }
  const int64_t count = tokens.size();
  s.num_top = std::min(s.num_top, count);
  if (!count) return;
  std::vector<float> normed(m.size), query(m.size), scores(count + kWeightRows);
  norm_row(m.last_hidden, m.final_norm, kDraftEps, m.size, normed.data());
  draft_product(cold, m.head, m.size, m.size, normed.data(), 1, query.data());
  for (int64_t n = 0; n < count; n += kWeightRows) {
    const float* w[kWeightRows];
    for (int64_t i = 0; i < kWeightRows; i++) {
      w[i] = vector_of(m, tokens[std::min(n + i, count - 1)]);
      if (!cold) continue;
      prefetch(vector_of(m, tokens[std::min(n + i + kCandidatesAhead, count - 1)]), m.size * sizeof(float));
    }
    dot_tile<1>(w, query.data(), m.size, &scores[n], kWeightRows);
  }
  float highest = -3e38f, total = 0.0f;
  for (int64_t i = 0; i < count; i++) highest = std::max(highest, scores[i] += m.biases[m.vector_index[tokens[i]] - 1]);
  for (int64_t i = 0; i < count; i += W) {
    const int64_t lanes = std::min<int64_t>(W, count - i);
    const vf weights = exp(loadf_n(&scores[i], lanes) - highest);
    for (int64_t lane = 0; lane < lanes; lane++) total += weights[lane];
  }
  for (int64_t k = 0; k < s.num_top; k++) {
    const int64_t i = std::max_element(scores.begin(), scores.begin() + count) - scores.begin();
    s.top_tokens[k] = tokens[i];
    s.top_probabilities[k] = exp(splat(scores[i] - highest))[0] / total;
    scores[i] = -3e38f;
  }
}

// Runs the tokens of a step through the layers. `cold`: the weights are in no cache of the CPU.
inline void run_layers(DraftModel& m, const DraftStep& s, bool cold) {
  if (cold) prefetch(m.layers[0].qkv, kAhead);
  compute_vectors(m, s.ids, s.count);
  std::vector<float> x(s.count * m.size), scratch;
  for (int64_t t = 0; t < s.count; t++)
    std::memcpy(&x[t * m.size], vector_of(m, s.ids[t]), m.size * sizeof(float));
  for (int64_t i = 0; i < m.num_layers; i++)
    draft_layer(m, m.layers[i], s, cold, s.kv + i * m.capacity * m.size, x.data(), scratch);
  std::memcpy(m.last_hidden, &x[(s.count - 1) * m.size], m.size * sizeof(float));
}

// The trigram that starts with two tokens, or null.
inline const Trigram* find_trigram(const DraftModel& m, int32_t first, int32_t second) {
  const auto before = [](const Trigram& t, std::pair<int32_t, int32_t> key) {
    return std::make_pair(t.first, t.second) < key;
  };
  const Trigram* end = m.trigrams + m.num_trigrams;
  const Trigram* found = std::lower_bound(m.trigrams, end, std::make_pair(first, second), before);
  return found != end && found->first == first && found->second == second ? found : nullptr;
}

inline void draft(DraftModel& m, DraftStep& s) {
  const int64_t num_top = s.num_top;
  const bool cold = s.count > 0;  // without ids, the last call has just used the weights
  compute_vectors(m, s.candidates, s.num_candidates);
  if (s.count) run_layers(m, s, cold);
  rank_candidates(m, s, cold);
  s.num_generated = 0;
  if (!s.count) return;
  const int64_t end = s.start + s.count, room = std::min(s.max_generated, m.capacity - end);
  int32_t previous = s.ids[s.count - 1];
  DraftStep next = s;
  next.bidirectional = 0;
  while (s.num_generated < room && s.num_top && s.top_probabilities[0] >= s.min_confidence) {
    const int64_t first = s.num_generated;
    int32_t token = s.top_tokens[0];
    float probability = s.top_probabilities[0];
    while (true) {
      s.generated[s.num_generated] = token, s.probabilities[s.num_generated++] = probability;
      const Trigram* trigram = find_trigram(m, previous, token);
      previous = token;
      if (!trigram || s.num_generated == room) break;
      token = trigram->third, probability = 1.0f;
    }
    next.ids = s.generated + first, next.count = s.num_generated - first, next.start = end + first;
    run_layers(m, next, false);
    s.num_top = num_top;
    rank_candidates(m, s, false);
  }
}

}  // namespace hk
