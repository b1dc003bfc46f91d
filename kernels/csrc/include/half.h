// IEEE float16, as scales of quantized weights are stored.
#pragma once

#include "vec.h"

namespace infopt {

struct half {
  uint16_t bits;
};

inline float to_float(half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu, mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero or denormal: mantissa * 2^-24
    const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 0xffu : exponent + 112;
  const uint32_t bits = sign | (wide << 23) | (mantissa << 13);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Full registers of scales, whatever type they are kept in.
inline Vec load_scales(const float* p) { return Vec::load(p); }

inline Vec load_scales(const half* p) {
#if defined(__AVX512F__)
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
#elif defined(__F16C__)
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
#else
  alignas(64) float wide[Vec::width];
  for (int i = 0; i < Vec::width; ++i) wide[i] = to_float(p[i]);
  return Vec::load(wide);
#endif
}

}  // namespace infopt
