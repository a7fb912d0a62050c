// Low-rank adapters (Hu et al. 2021), added to the outputs of a linear layer: different ones for different rows.
//
// out[m] += up · (scaling · down · x[m]). The first product sums as in dense.h, the second in order of the rank. So a
// row's result does not depend on other rows, nor on the ranks of their adapters.
#pragma once

#include "dense.h"

namespace hk {

constexpr int kProjections = 7;  // of a layer: queries, keys, values, output, gate, up, down
constexpr int kMaxParts = 3;     // projections in one matmul: queries, keys and values

struct LoraPart {
  const void* down;  // [rank, in]
  const void* up;    // [rank, out]
  int32_t dtype;     // of both
  int32_t rank;      // 0: this projection is unchanged
  float scaling;
};

// Rows of a batch with the same adapter, at most kLoraRows.
struct LoraTile {
  int64_t first, rows;
  const LoraPart* parts;  // [layers, kProjections]
};

struct LoraBatch {
  const LoraTile* tiles;
  int64_t count, max_rank;
  float* between;  // [rows of the batch, kMaxParts, max_rank]
};

// Projections that share one matmul. Their outputs are side by side.
struct LoraSite {
  int64_t place;  // of the first, counted through all layers
  int64_t parts, in;
  int64_t widths[kMaxParts];
};

constexpr int64_t kLoraRows = 16;
constexpr int64_t kLoraRanks = 16;    // of a unit of work
constexpr int64_t kLoraColumns = 256;  // of a unit of work

// Writes scaling · down · x for the ranks first … last - 1.
template <class T>
void shrink(const T* down, const LoraPart& part, int64_t first, int64_t last, const float* x, int64_t rows,
            int64_t depth, float* out, int64_t ldo) {
  float sums[kLoraRows][kWeightRows];
  for (int64_t r = first; r < last; r += kWeightRows) {
    const T* w[kWeightRows];
    for (int64_t i = 0; i < kWeightRows; i++) w[i] = down + std::min(r + i, last - 1) * depth;
    dot_rows<3>(w, x, rows, depth, &sums[0][0], kWeightRows);
    const int64_t count = std::min<int64_t>(kWeightRows, last - r);
    for (int64_t m = 0; m < rows; m++)
      for (int64_t i = 0; i < count; i++) out[m * ldo + r + i] = sums[m][i] * part.scaling;
  }
}

// Adds up · between to W columns of MM rows; `up` and `out` point to the first column.
template <int MM, class T>
inline void expand_tile(const T* up, int64_t rank, int64_t width, int lanes, const float* between, int64_t ldb,
                        float* out, int64_t ldo) {
  vf sums[MM] = {};
  for (int64_t r = 0; r < rank; r++) {
    const vf weight = widen_n(up + r * width, lanes);
    for (int m = 0; m < MM; m++) sums[m] = fma(weight, splat(between[m * ldb + r]), sums[m]);
  }
  for (int m = 0; m < MM; m++) storef_n(out + m * ldo, loadf_n(out + m * ldo, lanes) + sums[m], lanes);
}

// Columns first … last - 1 of a part that has `width`; `out` points to the part's first column.
template <class T>
void expand(const T* up, int64_t rank, int64_t width, int64_t first, int64_t last, const float* between, int64_t ldb,
            int64_t rows, float* out, int64_t ldo) {
  for (int64_t n = first; n < last; n += W) {
    const int lanes = static_cast<int>(std::min<int64_t>(W, last - n));
    int64_t m = 0;
    for (; m + 4 <= rows; m += 4)
      expand_tile<4>(up + n, rank, width, lanes, between + m * ldb, ldb, out + m * ldo + n, ldo);
    for (; m < rows; m++)
      expand_tile<1>(up + n, rank, width, lanes, between + m * ldb, ldb, out + m * ldo + n, ldo);
  }
}

// Whether an adapter of the batch changes a projection of the site.
inline bool changes(const LoraBatch& b, const LoraSite& s) {
  for (int64_t i = 0; i < b.count; i++)
    for (int64_t part = 0; part < s.parts; part++)
      if (b.tiles[i].parts[s.place + part].rank) return true;
  return false;
}

// x: [rows, in]; out: [rows, sum of widths].
inline void add_lora(Pool& pool, const LoraBatch& b, const LoraSite& s, const float* x, float* out) {
  if (!changes(b, s)) return;
  int64_t starts[kMaxParts], total = 0, widest = 0;
  for (int64_t i = 0; i < s.parts; total += s.widths[i++]) starts[i] = total, widest = std::max(widest, s.widths[i]);
  const int64_t ldb = kMaxParts * b.max_rank;
  const auto each_part = [&](int64_t size, int64_t step, auto body) {
    const int64_t steps = (size + step - 1) / step;
    pool.each(b.count * s.parts * steps, [&](int64_t i) {
      const LoraTile& tile = b.tiles[i / steps / s.parts];
      const int64_t part = i / steps % s.parts;
      const LoraPart& lora = tile.parts[s.place + part];
      if (lora.rank) body(tile, part, lora, b.between + tile.first * ldb + part * b.max_rank, i % steps * step);
    });
  };
  each_part(b.max_rank, kLoraRanks, [&](auto& tile, int64_t, auto& lora, float* between, int64_t first) {
    const int64_t last = std::min<int64_t>(first + kLoraRanks, lora.rank);
    with_type(lora.down, lora.dtype, [&](auto down) {
      shrink(down, lora, first, last, x + tile.first * s.in, tile.rows, s.in, between, ldb);
    });
  });
  each_part(widest, kLoraColumns, [&](auto& tile, int64_t part, auto& lora, float* between, int64_t first) {
    const int64_t last = std::min(first + kLoraColumns, s.widths[part]);
    with_type(lora.up, lora.dtype, [&](auto up) {
      expand(up, lora.rank, s.widths[part], first, last, between, ldb, tile.rows,
             out + tile.first * total + starts[part], total);
    });
  });
}

}  // namespace hk
