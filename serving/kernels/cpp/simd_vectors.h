// The types of vectors, and what needs no instruction of its own: the compiler's vector extensions. W is defined.
#pragma once

#include "floats.h"

namespace hk {

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef int16_t vs __attribute__((vector_size(W * 4)));  // a lane of vi as a pair of int16
typedef uint16_t vh __attribute__((vector_size(W * 2)));
typedef uint8_t vb __attribute__((vector_size(W)));

template <class V>
inline V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

template <class V>
inline void store(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

inline vf splat(float x) { return x - vf{}; }
inline vi splat_int(int32_t x) { return x + vi{}; }
inline vi subtract_pairs(vi a, vi b) { return (vi)((vs)a - (vs)b); }
inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }

// The low 16 bits of each lane.
inline void store_int16(int16_t* p, vi v) { store(p, __builtin_convertvector(v, vh)); }

inline vf select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

}  // namespace hk
