// The matmul of awq_int16.h on AMX tiles: the same integer arithmetic and thus the same bits, about five times as fast.
//
// An input is v = 256 · high + low, with a signed high byte and an unsigned low byte; q − z is a signed byte. One tile
// instruction sums 64 products for 16 rows and 16 columns; high and low bytes take one each. Both sums are exact, and
// they are combined before the group's scale is applied, as in awq_int16.h.
// Source: Intel Architecture Instruction Set Extensions Programming Reference, chapter 3 (Intel AMX).
#pragma once

#include "awq_int16.h"

#if defined(__AMX_INT8__) && defined(__AVX512VBMI__) && defined(__linux__) && !defined(HK_NO_AMX)
#define HK_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace hk {

#if defined(HK_AMX)

constexpr int kStep = 64;       // k's of one tile instruction
constexpr int kTileBytes = 1024;  // 16 lines of 64 bytes
constexpr int kMaxGroup = 512;
constexpr int kRowBlock = 192;  // rows in a unit of work: as many as have their inputs in the L2 cache
constexpr int kFewestRows = 5;  // tiles are faster than vectors from this many rows on

// Whether Linux lets this process use tiles; it must ask for the permission once.
inline bool amx_allowed() {
  static const bool allowed = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
  return allowed;
}

inline bool amx_fits(const Awq& a) { return a.group % kStep == 0 && a.group <= kMaxGroup && amx_allowed(); }

// The compiler does not know that tile instructions read and write memory.
inline void memory_barrier() { asm volatile("" ::: "memory"); }

// Tiles 0 … 3: sums of the high and low bytes for each strip; 4, 5: inputs; 6, 7: weights of each strip.
inline void configure_tiles(int64_t rows) {
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; i++) {
    config.bytes[i] = 64;
    config.rows[i] = i < 6 ? uint8_t(rows) : 16;
  }
  memory_barrier();
  _tile_loadconfig(&config);
}

// The order of 8 k's in the lines that unpack_step writes: it takes the same nibble of all four bytes of a word.
constexpr int kBytes[8] = {0, 4, 1, 5, 2, 6, 3, 7};

struct ByteOrder {
  alignas(64) uint8_t at[64];
  constexpr explicit ByteOrder(int high) : at() {
    for (int i = 0; i < 64; i++) at[i] = uint8_t(2 * (i / 8 * 8 + kBytes[i % 8]) + high);
  }
};
constexpr ByteOrder kLow(0), kHigh(1);

// The low or the high bytes of 64 int16, in that order.
inline __m512i split_bytes(const int16_t* values, const ByteOrder& order) {
  return _mm512_permutex2var_epi8(_mm512_loadu_si512(values), _mm512_load_si512(order.at),
                                  _mm512_loadu_si512(values + 32));
}

// The rounded inputs as tiles: for every 16 rows and 64 k's, a tile of high bytes, then a tile of low bytes. The
// scales [rows, groups] follow.
struct Int8Rows {
  uint8_t* tiles;
  float* scales;
  int64_t in, groups;

  Int8Rows(float* buffer, const Awq& a, int64_t rows)
      : tiles(reinterpret_cast<uint8_t*>(buffer)), scales(buffer + (rows + 15) / 16 * 16 * a.in / 2), in(a.in),
        groups(a.groups()) {}
  uint8_t* tile(int64_t row, int64_t k) const { return tiles + (row / 16 * in / kStep + k / kStep) * 2 * kTileBytes; }
};

inline void round_rows(Pool& pool, const Awq& a, const float* x, int64_t rows, const Int8Rows& bytes) {
  pool.each_range(rows, 4, [&](int64_t first, int64_t last) {
    int16_t values[kMaxGroup];
    for (int64_t m = first; m < last; m++)
      for (int64_t g = 0; g < bytes.groups; g++) {
        const int64_t start = g * a.group;
        round_group(x + m * bytes.in + start, a.group, values, bytes.scales + m * bytes.groups + g);
        for (int64_t k = 0; k < a.group; k += kStep) {
          uint8_t* line = bytes.tile(m, start + k) + m % 16 * kStep;
          _mm512_store_si512(line, split_bytes(values + k, kHigh));
          _mm512_store_si512(line + kTileBytes, split_bytes(values + k, kLow));
        }
      }
  });
}

// Unpacks 64 k's of NV strips into tiles: line r of a tile holds four k's of each column, in the order of kBytes.
template <int NV>
inline void unpack_step(const Awq& a, int64_t strip, int64_t k, const __m512i* zeros, uint8_t* tiles) {
  const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 2
  for (int n = 0; n < NV; n++)
#pragma GCC unroll 8
    for (int b = 0; b < kStep / 8; b++) {
      const __m512i words = (__m512i)load_words<NV>(a, strip + n, k + 8 * b);
      uint8_t* lines = tiles + n * kTileBytes + b * 128;
      _mm512_store_si512(lines, _mm512_sub_epi8(_mm512_and_si512(words, nibble), zeros[n]));
      _mm512_store_si512(lines + 64,
                         _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(words, 4), nibble), zeros[n]));
    }
}

// Each column's zero point, repeated in four bytes.
inline __m512i splat_zeros(const Awq& a, int64_t strip, int64_t g) {
  const vi zero = widen_bytes(a.zeros + (strip * a.groups() + g) * W);
  return _mm512_mullo_epi32((__m512i)zero, _mm512_set1_epi32(0x01010101));
}

// Tiles 0 … 3 = one group of the inputs times one group of NV strips.
template <int NV>
inline void multiply_group(const uint8_t* inputs, const uint8_t* weights, int64_t group) {
  memory_barrier();
  _tile_zero(0);
  _tile_zero(1);
  if (NV == 2) _tile_zero(2);
  if (NV == 2) _tile_zero(3);
  for (int64_t k = 0; k < group; k += kStep, inputs += 2 * kTileBytes, weights += NV * kTileBytes) {
    _tile_loadd(4, inputs, 64);
    _tile_loadd(6, weights, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(5, inputs + kTileBytes, 64);
    _tile_dpbusd(1, 5, 6);
    if (NV == 2) {
      _tile_loadd(7, weights + kTileBytes, 64);
      _tile_dpbssd(2, 4, 7);
      _tile_dpbusd(3, 5, 7);
    }
  }
}

template <int NV>
inline void store_sums(int32_t* sums) {
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  if (NV == 2) _tile_stored(2, sums + 512, 64);
  if (NV == 2) _tile_stored(3, sums + 768, 64);
  memory_barrier();
}

// The address of one group's tiles within the tiles of NV strips.
template <int NV>
inline uint8_t* group_tiles(const Awq& a, int64_t g, uint8_t* tiles) {
  return tiles + g * a.group / kStep * NV * kTileBytes;
}

template <int NV>
inline void unpack_group(const Awq& a, int64_t strip, int64_t g, uint8_t* tiles) {
  __m512i zeros[NV];
  for (int n = 0; n < NV; n++) zeros[n] = splat_zeros(a, strip + n, g);
  for (int64_t k = 0; k < a.group; k += kStep)
    unpack_step<NV>(a, strip, g * a.group + k, zeros, group_tiles<NV>(a, g, tiles) + k / kStep * NV * kTileBytes);
}

// total [16, NV · W] += the scaled sums of one group; group 0 overwrites total.
template <int NV>
inline void add_group(const Awq& a, int64_t strip, int64_t g, const Int8Rows& x, int64_t row, int64_t rows,
                      const int32_t* sums, float* total) {
  vf scales[NV];
  for (int n = 0; n < NV; n++) scales[n] = widen(a.scales + ((strip + n) * a.groups() + g) * W);
  const float* scale = x.scales + row * x.groups + g;
#pragma GCC unroll 2
  for (int64_t m = 0; m < rows; m++, scale += x.groups)
#pragma GCC unroll 2
    for (int n = 0; n < NV; n++) {
      const vi high = load<vi>(sums + n * 512 + m * 16), low = load<vi>(sums + n * 512 + 256 + m * 16);
      float* at = total + (m * NV + n) * W;
      storef(at, fma(to_float((high << 8) + low), scales[n] * *scale, g ? loadf(at) : vf{}));
    }
}

// Multiplies up to 16 rows from `row` on with NV strips; the first call for a strip fills `tiles`. The tile unit works
// on one group while vector instructions add up the sums of the group before.
template <int NV>
void rows_amx(const Awq& a, int64_t strip, const Int8Rows& x, int64_t row, int64_t rows, bool first,
              uint8_t* tiles, float* out) {
  alignas(64) int32_t sums[NV * 512];
  alignas(64) float total[16 * NV * W];
  for (int64_t g = 0; g <= x.groups; g++) {
    if (g < x.groups) {
      if (first) unpack_group<NV>(a, strip, g, tiles);
      multiply_group<NV>(x.tile(row, g * a.group), group_tiles<NV>(a, g, tiles), a.group);
    }
    if (g) add_group<NV>(a, strip, g - 1, x, row, rows, sums, total);
    if (g < x.groups) store_sums<NV>(sums);
  }
  for (int64_t m = 0; m < rows; m++)
    for (int n = 0; n < NV; n++)
      storef_n(out + (row + m) * a.out + (strip + n) * W, loadf(total + (m * NV + n) * W), a.out - (strip + n) * W);
}

template <int NV>
void strips_amx(const Awq& a, int64_t strip, const Int8Rows& x, int64_t first, int64_t last, float* out) {
  uint8_t* tiles = reinterpret_cast<uint8_t*>(scratch(a.in * NV * W / sizeof(float)));
  for (int64_t row = first; row < last; row += 16) {
    const int64_t count = std::min<int64_t>(16, last - row);
    if (row == first || count < 16) configure_tiles(count);
    rows_amx<NV>(a, strip, x, row, count, row == first, tiles, out);
  }
  _tile_release();
}

inline void awq_gemm_amx(Pool& pool, const Awq& a, const float* x, int64_t rows, float* out) {
  const Int8Rows bytes(pool.shared(), a, rows);
  round_rows(pool, a, x, rows, bytes);
  const int64_t pairs = (a.strips() + 1) / 2, blocks = (rows + kRowBlock - 1) / kRowBlock;
  pool.each(blocks * pairs, [&](int64_t unit) {
    const int64_t strip = unit % pairs * 2, block = unit / pairs;
    const int64_t first = rows * block / blocks / 16 * 16;
    const int64_t last = block + 1 < blocks ? rows * (block + 1) / blocks / 16 * 16 : rows;
    if (strip + 1 < a.strips()) return strips_amx<2>(a, strip, bytes, first, last, out);
    strips_amx<1>(a, strip, bytes, first, last, out);
  });
}

#endif

}  // namespace hk
