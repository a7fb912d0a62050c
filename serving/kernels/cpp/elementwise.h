// Kernels that work element by element or row by row: embedding, RMS norm, activation, rotary embedding.
#pragma once

#include "pool.h"
#include "simd.h"

namespace hk {

enum DType : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// Calls f with `data` as a pointer to its dtype.
template <class F>
inline void with_type(const void* data, int dtype, F f) {
  if (dtype == kFloat16)
    f(static_cast<const Half*>(data));
  else if (dtype == kBFloat16)
    f(static_cast<const BFloat16*>(data));
  else
    f(static_cast<const float*>(data));
}

template <class T>
void embedding(Pool& pool, const int32_t* ids, const T* table, int64_t rows, int64_t width, float* out) {
  pool.each_range(rows, 16, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++)
      for (int64_t i = 0; i < width; i += W)
        storef_n(out + t * width + i, widen_n(table + ids[t] * width + i, width - i), width - i);
  });
}

inline void norm_row(const float* x, const float* weight, float eps, int64_t width, float* out) {
  vf squares = {};
  for (int64_t i = 0; i < width; i += W) {
    vf v = loadf_n(x + i, width - i);
    squares = fma(v, v, squares);
  }
  vf scale = splat(1.0f / std::sqrt(sum(squares) / width + eps));
  for (int64_t i = 0; i < width; i += W) {
    vf v = loadf_n(x + i, width - i) * scale * loadf_n(weight + i, width - i);
    storef_n(out + i, v, width - i);
  }
}

inline void add_row(float* sum, const float* x, int64_t width) {
  for (int64_t i = 0; i < width; i += W)
    storef_n(sum + i, loadf_n(sum + i, width - i) + loadf_n(x + i, width - i), width - i);
}

// residual += x unless x is null; out = rms_norm(residual).
inline void add_rms_norm(Pool& pool, const float* x, float* residual, const float* weight, float eps,
                         int64_t rows, int64_t width, float* out) {
  pool.each_range(rows, 8, [&](int64_t first, int64_t last) {
    for (int64_t t = first * width; t < last * width; t += width) {
      if (x) add_row(residual + t, x + t, width);
      norm_row(residual + t, weight, eps, width, out + t);
    }
  });
}

inline vf silu(vf x) { return x / (1.0f + exp(-x)); }

inline void silu_and_mul(Pool& pool, const float* gate_up, int64_t rows, int64_t width, float* out) {
  constexpr int64_t kSegment = 512;
  int64_t segments = (width + kSegment - 1) / kSegment;
  pool.each(rows * segments, [&](int64_t unit) {
    int64_t t = unit / segments, start = unit % segments * kSegment;
    int64_t stop = start + kSegment < width ? start + kSegment : width;
    const float* gate = gate_up + t * 2 * width;
    for (int64_t i = start; i < stop; i += W) {
      const vf up = loadf_n(gate + width + i, stop - i);
      storef_n(out + t * width + i, silu(loadf_n(gate + i, stop - i)) * up, stop - i);
    }
  });
}

// (a, b) → (a·cos − b·sin, b·cos + a·sin), a and b the halves of one head.
inline void rotate(const float* x, const float* cos, const float* sin, int64_t half, float* out) {
  for (int64_t i = 0; i < half; i += W) {
    vf a = loadf_n(x + i, half - i), b = loadf_n(x + half + i, half - i);
    vf c = loadf_n(cos + i, half - i), s = loadf_n(sin + i, half - i);
    storef_n(out + i, a * c - b * s, half - i);
    storef_n(out + half + i, b * c + a * s, half - i);
  }
}

}  // namespace hk
