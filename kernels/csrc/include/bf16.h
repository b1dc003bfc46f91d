// bfloat16 as the upper half of a float.
#pragma once

#include <cstdint>
#include <cstring>

namespace infopt {

struct bf16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(bf16 x) {
  const uint32_t wide = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Rounds to nearest even; a NaN stays a NaN.
inline bf16 to_bf16(float x) {
  uint32_t wide;
  std::memcpy(&wide, &x, sizeof(wide));
  if ((wide & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<uint16_t>((wide >> 16) | 0x40u)};
  return bf16{static_cast<uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16)};
}

}  // namespace infopt
