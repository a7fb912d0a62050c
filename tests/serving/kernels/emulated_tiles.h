// AMX tiles and bfloat16 instructions in plain C++, so that the kernels for them are tested on CPUs without. It is
// included before everything else (-include).
// Source: Intel Architecture Instruction Set Extensions Programming Reference, chapter 3.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_INT8__ 1
#define __AMX_BF16__ 1
#define __AVX512BF16__ 1

namespace emulated {

struct Tiles {
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } config;
  alignas(64) uint8_t data[8][16][64];
};
inline thread_local Tiles tiles;

inline void configure(const void* config) {
  std::memcpy(&tiles.config, config, sizeof tiles.config);
  std::memset(tiles.data, 0, sizeof tiles.data);
}

inline void load(int tile, const void* from, int64_t stride) {
  std::memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
  for (int r = 0; r < tiles.config.rows[tile]; r++)
    std::memcpy(tiles.data[tile][r], static_cast<const uint8_t*>(from) + r * stride, tiles.config.bytes[tile]);
}

inline void save(int tile, void* to, int64_t stride) {
  for (int r = 0; r < tiles.config.rows[tile]; r++)
    std::memcpy(static_cast<uint8_t*>(to) + r * stride, tiles.data[tile][r], tiles.config.bytes[tile]);
}

inline float widened(const uint8_t* bfloat16) {
  const uint32_t bits = uint32_t(bfloat16[0] | bfloat16[1] << 8) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Calls f(a, b, sum) for each four bytes of `a` and `b` that are multiplied, and the four bytes of their sum.
template <class F>
inline void each_product(int to, int a, int b, F f) {
  for (int m = 0; m < tiles.config.rows[to]; m++)
    for (int n = 0; n < tiles.config.bytes[to]; n += 4)
      for (int k = 0; k < tiles.config.bytes[a]; k += 4)
        f(tiles.data[a][m] + k, tiles.data[b][k / 4] + n, tiles.data[to][m] + n);
}

template <class A>
inline void add_bytes(int to, int a, int b) {
  each_product(to, a, b, [](const uint8_t* x, const uint8_t* y, uint8_t* sum) {
    int32_t total;
    std::memcpy(&total, sum, sizeof total);
    for (int i = 0; i < 4; i++) total += int32_t(A(x[i])) * int8_t(y[i]);
    std::memcpy(sum, &total, sizeof total);
  });
}

inline void add_bfloat16(int to, int a, int b) {
  for (int m = 0; m < tiles.config.rows[to]; m++)
    for (int n = 0; n < tiles.config.bytes[to]; n += 4) {
      float even = 0, odd = 0, total;
      for (int k = 0; k < tiles.config.bytes[a]; k += 4) {
        const uint8_t *x = tiles.data[a][m] + k, *y = tiles.data[b][k / 4] + n;
        even = std::fma(widened(x), widened(y), even);
        odd = std::fma(widened(x + 2), widened(y + 2), odd);
      }
      std::memcpy(&total, tiles.data[to][m] + n, sizeof total);
      total += even + odd;
      std::memcpy(tiles.data[to][m] + n, &total, sizeof total);
    }
}

// To nearest, ties to even.
inline __m256bh narrow(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return (__m256bh)_mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

inline __m512bh narrow_two(__m512 high, __m512 low) {
  return (__m512bh)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)narrow(low)), (__m256i)narrow(high), 1);
}

inline __m512 add_dots(__m512 sums, __m512bh a, __m512bh b) {
  const auto odd = [](__m512bh v) { return _mm512_and_si512((__m512i)v, _mm512_set1_epi32(0xffff0000)); };
  const auto even = [](__m512bh v) { return _mm512_slli_epi32((__m512i)v, 16); };
  sums = _mm512_fmadd_ps(_mm512_castsi512_ps(odd(a)), _mm512_castsi512_ps(odd(b)), sums);
  return _mm512_fmadd_ps(_mm512_castsi512_ps(even(a)), _mm512_castsi512_ps(even(b)), sums);
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::configure
#define _tile_release() ((void)0)
#define _tile_zero(tile) std::memset(emulated::tiles.data[tile], 0, sizeof emulated::tiles.data[tile])
#define _tile_loadd emulated::load
#define _tile_stream_loadd emulated::load
#define _tile_stored emulated::save
#define _tile_dpbssd emulated::add_bytes<int8_t>
#define _tile_dpbusd emulated::add_bytes<uint8_t>
#define _tile_dpbf16ps emulated::add_bfloat16
#define _mm512_cvtneps_pbh emulated::narrow
#define _mm512_cvtne2ps_pbh emulated::narrow_two
#define _mm512_dpbf16_ps emulated::add_dots
#define syscall(...) 0  // the permission to use tiles
