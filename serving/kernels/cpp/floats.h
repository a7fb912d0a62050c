// 16-bit floats: their bits, and conversions of single ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace hk {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

inline float half_to_float(uint16_t h) {
  uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023, sign = uint32_t(h & 0x8000) << 16;
  if (exponent == 0) {
    float value = std::ldexp(float(mantissa), -24);
    return sign ? -value : value;
  }
  uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Rounds to nearest, ties to even; not for NaN.
inline BFloat16 round_to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

}  // namespace hk
