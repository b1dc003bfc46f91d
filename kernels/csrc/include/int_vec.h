// Sixteen integer sums of byte products.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "vec.h"

namespace infopt {

// Sixteen outputs times four inputs of codes: what one dot-product instruction multiplies.
struct Codes {
#if defined(__AVX512VNNI__)
  __m512i v;

  static Codes load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  Codes low_nibbles() const { return {_mm512_and_si512(v, _mm512_set1_epi8(15))}; }
  Codes high_nibbles() const {
    return {_mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15))};
  }
#else
  uint8_t v[64];

  static Codes load(const uint8_t* p) {
    Codes c;
    for (int i = 0; i < 64; ++i) c.v[i] = p[i];
    return c;
  }
  Codes low_nibbles() const {
    Codes c;
    for (int i = 0; i < 64; ++i) c.v[i] = v[i] & 15;
    return c;
  }
  Codes high_nibbles() const {
    Codes c;
    for (int i = 0; i < 64; ++i) c.v[i] = v[i] >> 4;
    return c;
  }
#endif
};

struct IntSums {
#if defined(__AVX512VNNI__)
  __m512i v;

  static IntSums zero() { return {_mm512_setzero_si512()}; }
  // Adds the products with four signed inputs, packed into one word.
  void add(Codes codes, int32_t inputs) {
    v = _mm512_dpbusd_epi32(v, codes.v, _mm512_set1_epi32(inputs));
  }
  void store(int32_t* p) const { _mm512_storeu_si512(p, v); }
#else
  int32_t v[16];

  static IntSums zero() { return {}; }
  void add(const Codes& codes, int32_t inputs) {
    int8_t x[4];
    std::memcpy(x, &inputs, sizeof(x));
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 4; ++j) v[i] += codes.v[4 * i + j] * x[j];
    }
  }
  void store(int32_t* p) const { std::memcpy(p, v, sizeof(v)); }
#endif
};

inline Vec load_ints(const int32_t* p) {
#if defined(__AVX512F__)
  return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))};
#elif defined(__AVX2__)
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
#else
  return lanewise([&](int i) { return static_cast<float>(p[i]); });
#endif
}

// Rounds a register of floats to codes, writes their bytes and returns their sum: code = low, or
// 256 * high + low with low in -128 .. 127 where `high` is given.
inline int32_t store_codes(Vec scaled, int8_t* low, int8_t* high) {
#if defined(__AVX512F__)
  const __m512i code = _mm512_cvtps_epi32(scaled.v);
  __m512i bottom = code;
  if (high != nullptr) {
    const __m512i top = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8);
    bottom = _mm512_sub_epi32(code, _mm512_slli_epi32(top, 8));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(top));
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(bottom));
  return _mm512_reduce_add_epi32(code);
#else
  alignas(64) float lanes[Vec::width];
  round_even(scaled).store(lanes);
  int32_t total = 0;
  for (int i = 0; i < Vec::width; ++i) {
    // The codes of a row with a NaN are never used, but its conversion would be undefined.
    const int32_t code = std::fabs(lanes[i]) < 65536.0f ? static_cast<int32_t>(lanes[i]) : 0;
    const int32_t top = high != nullptr ? (code + 128) >> 8 : 0;
    if (high != nullptr) high[i] = static_cast<int8_t>(top);
    low[i] = static_cast<int8_t>(code - top * 256);
    total += code;
  }
  return total;
#endif
}

}  // namespace infopt
