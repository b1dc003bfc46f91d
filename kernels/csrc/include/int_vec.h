// Sixteen integer sums of byte products.
#pragma once

#include <cstdint>

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

}  // namespace infopt
