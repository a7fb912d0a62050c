// The draft model: a transformer of small layers over the tokens of one request, on one thread.
//
// As in Llama (Touvron et al. 2023), with as many key as query heads. A token's vector is a projection of the
// large model's embedding, made when the token is first met; the same vectors are what the result is compared with.
#pragma once

#include <utility>
#include <vector>

#include "draft_attention.h"
#include "draft_product.h"

namespace hk {

constexpr float kDraftEps = 1e-5f;
constexpr float kVectorEps = 1e-12f;  // small beside any embedding's: it only keeps 0 from becoming NaN

// Weights are as `prepare_weights` makes them.
struct DraftLayer {
  const float* input_norm;
  const void* qkv;  // [3 size, size]
  const void* output;
  const float* post_attention_norm;
  const void* gate_up;  // [2 hidden, size]
  const void* down;     // [size, hidden]
};

// Behind `first` and `second` always came `third`.
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
  const void* project;  // [size, padded], 0 behind width
  const Half* bias;     // [width]
  const float* cos;     // [capacity, kDraftHead / 2]
  const float* sin;
  float* vectors;  // [vocab, size], as many as are known, in the order in which they were met
  float* biases;   // the same
  int32_t* places;  // [vocab]: 1 + where a token's vector is; 0: not known
  float* last;      // [size]: what the last row of the last step came to
  const Trigram* always;  // ascending
  int64_t num_always;
  int64_t known;
};

// Tokens from place `start` on; what stood there is forgotten. Then the candidates that most likely follow.
// Without tokens: the same place again, among other candidates. As long as the likeliest has the share `sure`
// it is written behind them, and what always comes there, up to `most` tokens; the candidates are what follows.
struct DraftStep {
  const int32_t* ids;
  int64_t count, start;
  int64_t together;  // 1: these tokens see each other; 0: each sees those before it
  uint32_t* kv;  // [num_layers, 2, size / kDraftHead, capacity * kDraftPairs], as in draft_attention.h
  const int32_t* candidates;
  int64_t num_candidates;
  const uint32_t* allowed;  // a bit for each of the vocabulary, or null: others are no candidates
  int32_t* best;            // likeliest first
  float* chances;
  int64_t num_best;  // on return: as many as there were
  float sure;
  int64_t most;
  int32_t* written;  // [most], on return
  float* shares;     // [most], on return: of the written
  int64_t num_written;  // on return
};

inline void add_to(float* sum, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += W) storef(sum + i, loadf(sum + i) + loadf(x + i));
}

inline const float* vector_of(const DraftModel& m, int32_t token) { return m.vectors + (m.places[token] - 1) * m.size; }

// Projects and norms the embeddings of those tokens that are not known yet.
inline void meet(DraftModel& m, const int32_t* tokens, int64_t count) {
  std::vector<int32_t> strangers;
  for (int64_t i = 0; i < count; i++) {
    if (m.places[tokens[i]]) continue;
    strangers.push_back(tokens[i]);
    m.places[tokens[i]] = static_cast<int32_t>(m.known + strangers.size());
  }
  const int64_t rows = strangers.size();
  if (!rows) return;
  float *vectors = m.vectors + m.known * m.size, *biases = m.biases + m.known;
  m.known += rows;
  std::vector<float> x(rows * m.padded), ones(m.size, 1.0f);
  for (int64_t t = 0; t < rows; t++) {
    float* row = &x[t * m.padded];
    vf bias = {};
    with_type(m.embedding, m.dtype, [&](auto table) {
      const auto* entry = table + strangers[t] * m.width;
      if (t + 1 < rows) ask_for(table + strangers[t + 1] * m.width, m.width * sizeof(*table));
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

// Of one token's queries, keys and values [3, size] the queries are rotated and scaled, and the others stored.
inline void store_rotated(const DraftModel& m, int64_t place, float* qkv, uint32_t* keys) {
  const float *cos = m.cos + place * kDraftHead / 2, *sin = m.sin + place * kDraftHead / 2;
  const float scale = 1.0f / std::sqrt(float(kDraftHead));
  float rotated[kDraftHead];
  for (int64_t at = 0; at < m.size; at += kDraftHead) {
    float* query = qkv + at;
    uint32_t* head = keys + at / 2 * m.capacity;
    rotate(query + m.size, cos, sin, kDraftHead / 2, rotated);
    store_key(rotated, place, head);
    store_value(query + 2 * m.size, place, head + m.capacity * m.size / 2);
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
      const int64_t seen = s.start + (s.together ? n : t + 1);
      attend(wide + t * 3 * size + at, head_keys, head_values, seen, scores, weights, mixed + t * size + at);
    }
  draft_product(cold, layer.output, size, size, mixed, n, normed);
  add_to(x, normed, n * size);
  for (int64_t t = 0; t < n; t++)
    norm_row(x + t * size, layer.post_attention_norm, kDraftEps, size, normed + t * size);
  draft_product(cold, layer.gate_up, 2 * hidden, size, normed, n, wide);
  for (int64_t t = 0; t < n; t++)
    for (int64_t i = 0; i < hidden; i += W) {
      const float* gate = wide + t * 2 * hidden + i;
      storef(active + t * hidden + i, silu(loadf(gate)) * loadf(gate + hidden));
    }
  draft_product(cold, layer.down, size, hidden, active, n, normed);
  add_to(x, normed, n * size);
}

constexpr int64_t kSoon = 16;  // candidates

// The likeliest candidates after the last row, with their share among all candidates.
inline void choose(const DraftModel& m, DraftStep& s, bool cold) {
  std::vector<int32_t> among;
  among.reserve(s.num_candidates);
  for (int64_t i = 0; i < s.num_candidates; i++) {
    const int32_t token = s.candidates[i];
    if (!s.allowed || s.allowed[token / 32] >> token % 32 & 1) among.push_back(token);
  }
  const int64_t count = among.size();
  s.num_best = std::min(s.num_best, count);
  if (!count) return;
  std::vector<float> normed(m.size), aim(m.size), scores(count + kTogether);
  norm_row(m.last, m.final_norm, kDraftEps, m.size, normed.data());
  draft_product(cold, m.head, m.size, m.size, normed.data(), 1, aim.data());
  for (int64_t n = 0; n < count; n += kTogether) {
    const float* w[kTogether];
    for (int64_t i = 0; i < kTogether; i++) {
      w[i] = vector_of(m, among[std::min(n + i, count - 1)]);
      if (cold) ask_for(vector_of(m, among[std::min(n + i + kSoon, count - 1)]), m.size * sizeof(float));
    }
    dot_tile<1>(w, aim.data(), m.size, &scores[n], kTogether);
  }
  float most = -3e38f, total = 0.0f;
  for (int64_t i = 0; i < count; i++) most = std::max(most, scores[i] += m.biases[m.places[among[i]] - 1]);
  for (int64_t i = 0; i < count; i += W) {
    const int64_t lanes = std::min<int64_t>(W, count - i);
    const vf weights = exp(loadf_n(&scores[i], lanes) - most);
    for (int64_t lane = 0; lane < lanes; lane++) total += weights[lane];
  }
  for (int64_t k = 0; k < s.num_best; k++) {
    const int64_t i = std::max_element(scores.begin(), scores.begin() + count) - scores.begin();
    s.best[k] = among[i];
    s.chances[k] = exp(splat(scores[i] - most))[0] / total;
    scores[i] = -3e38f;
  }
}

// The tokens of a step through the layers. Cold: no cache has the weights.
inline void read_tokens(DraftModel& m, const DraftStep& s, bool cold) {
  if (cold) ask_for(m.layers[0].qkv, kAhead);
  meet(m, s.ids, s.count);
  std::vector<float> x(s.count * m.size), scratch;
  for (int64_t t = 0; t < s.count; t++)
    std::memcpy(&x[t * m.size], vector_of(m, s.ids[t]), m.size * sizeof(float));
  for (int64_t i = 0; i < m.num_layers; i++)
    draft_layer(m, m.layers[i], s, cold, s.kv + i * m.capacity * m.size, x.data(), scratch);
  std::memcpy(m.last, &x[(s.count - 1) * m.size], m.size * sizeof(float));
}

// What always follows two tokens; null where that differs.
inline const Trigram* find_always(const DraftModel& m, int32_t first, int32_t second) {
  const auto before = [](const Trigram& t, std::pair<int32_t, int32_t> key) {
    return std::make_pair(t.first, t.second) < key;
  };
  const Trigram* end = m.always + m.num_always;
  const Trigram* found = std::lower_bound(m.always, end, std::make_pair(first, second), before);
  return found != end && found->first == first && found->second == second ? found : nullptr;
}

inline void draft(DraftModel& m, DraftStep& s) {
  const int64_t num_best = s.num_best;
  const bool cold = s.count > 0;  // the same place again: they were just used
  meet(m, s.candidates, s.num_candidates);
  if (s.count) read_tokens(m, s, cold);
  choose(m, s, cold);
  s.num_written = 0;
  if (!s.count) return;
  const int64_t behind = s.start + s.count, most = std::min(s.most, m.capacity - behind);
  int32_t before = s.ids[s.count - 1];
  DraftStep next = s;
  next.together = 0;
  while (s.num_written < most && s.num_best && s.chances[0] >= s.sure) {
    const int64_t first = s.num_written;
    int32_t token = s.best[0];
    float share = s.chances[0];
    while (true) {
      s.written[s.num_written] = token, s.shares[s.num_written++] = share;
      const Trigram* known = find_always(m, before, token);
      before = token;
      if (!known || s.num_written == most) break;
      token = known->third, share = 1.0f;
    }
    next.ids = s.written + first, next.count = s.num_written - first, next.start = behind + first;
    read_tokens(m, next, false);
    s.num_best = num_best;
    choose(m, s, false);
  }
}

}  // namespace hk
