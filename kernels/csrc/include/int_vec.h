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
  // Bytes moved right (or left, below 0), and of them the bits of the mask. What comes in from a
  // neighbouring byte must lie outside it.
  Codes fields(int right, int mask) const {
    const __m512i moved = right == 0  ? v
                          : right > 0 ? _mm512_srli_epi16(v, right)
                                      : _mm512_slli_epi16(v, -right);
    return {_mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(mask)))};
  }
  Codes operator|(Codes other) const { return {_mm512_or_si512(v, other.v)}; }
#elif defined(__AVX2__)
  __m256i v[2];

  static Codes load(const uint8_t* p) {
    const __m256i* from = reinterpret_cast<const __m256i*>(p);
    return {{_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)}};
  }
  Codes fields(int right, int mask) const {
    const __m128i count = _mm_cvtsi32_si128(right < 0 ? -right : right);
    const __m256i kept = _mm256_set1_epi8(static_cast<char>(mask));
    Codes moved;
    for (int i = 0; i < 2; ++i) {
      const __m256i part =
          right < 0 ? _mm256_sll_epi16(v[i], count) : _mm256_srl_epi16(v[i], count);
      moved.v[i] = _mm256_and_si256(part, kept);
    }
    return moved;
  }
  Codes operator|(const Codes& other) const {
    return {{_mm256_or_si256(v[0], other.v[0]), _mm256_or_si256(v[1], other.v[1])}};
  }
  // Part i of four as 16-bit numbers: two outputs in each half of a register.
  __m256i wide(int i) const {
    const __m256i zero = _mm256_setzero_si256();
    return i % 2 == 0 ? _mm256_unpacklo_epi8(v[i / 2], zero) : _mm256_unpackhi_epi8(v[i / 2], zero);
  }
#else
  uint8_t v[64];

  static Codes load(const uint8_t* p) {
    Codes c;
    for (int i = 0; i < 64; ++i) c.v[i] = p[i];
    return c;
  }
  Codes fields(int right, int mask) const {
    Codes c;
    for (int i = 0; i < 64; ++i) {
      c.v[i] = static_cast<uint8_t>((right < 0 ? v[i] << -right : v[i] >> right) & mask);
    }
    return c;
  }
  Codes operator|(const Codes& other) const {
    Codes c;
    for (int i = 0; i < 64; ++i) c.v[i] = v[i] | other.v[i];
    return c;
  }
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

struct IntSums {
  // Whether one instruction adds products, so that many sums fit into the registers.
#if defined(__AVX512VNNI__)
  static constexpr bool has_dot = true;
#else
  static constexpr bool has_dot = false;
#endif
#if defined(__AVX512VNNI__)
  __m512i v;

  static IntSums zero() { return {_mm512_setzero_si512()}; }
  // Adds the products with four signed inputs, packed into one word.
  void add(Codes codes, int32_t inputs) {
    v = _mm512_dpbusd_epi32(v, codes.v, _mm512_set1_epi32(inputs));
  }
  // Sums i * Vec::width and following as floats.
  Vec part(int) const { return {_mm512_cvtepi32_ps(v)}; }
#elif defined(__AVX2__)
  __m256i v[4];  // two sums per output, which belong together

  static IntSums zero() {
    const __m256i none = _mm256_setzero_si256();
    return {{none, none, none, none}};
  }
  void add(const Codes& codes, int32_t inputs) {
    const __m128i words = _mm_cvtepi8_epi16(_mm_cvtsi32_si128(inputs));
    const __m256i x = _mm256_broadcastq_epi64(words);
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_add_epi32(v[i], _mm256_madd_epi16(codes.wide(i), x));
    }
  }
  Vec part(int i) const {
    alignas(64) int32_t sums[16];
    for (int j = 0; j < 2; ++j) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(sums + 8 * j),
                         _mm256_hadd_epi32(v[2 * j], v[2 * j + 1]));
    }
    return load_ints(sums + i * Vec::width);
  }
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
  Vec part(int i) const { return load_ints(v + i * Vec::width); }
#endif
};

// The largest absolute value of many; NaN where one is NaN or infinite. Without their sign, floats
// order like the integers that have the same bits.
struct Magnitude {
#if defined(__AVX512F__)
  __m512i v;

  static Magnitude zero() { return {_mm512_setzero_si512()}; }
  void add(Vec x) { v = _mm512_max_epu32(v, _mm512_castps_si512(abs(x).v)); }
  uint32_t bits() const { return _mm512_reduce_max_epu32(v); }
#else
  uint32_t v;

  static Magnitude zero() { return {0}; }
  void add(Vec x) {
    alignas(64) float lanes[Vec::width];
    abs(x).store(lanes);
    for (int i = 0; i < Vec::width; ++i) {
      uint32_t lane;
      std::memcpy(&lane, lanes + i, sizeof(lane));
      v = lane > v ? lane : v;
    }
  }
  uint32_t bits() const { return v; }
#endif
  float value() const {
    const uint32_t largest = bits();
    float x;
    std::memcpy(&x, &largest, sizeof(x));
    return std::isfinite(x) ? x : NAN;
  }
};

// Codes of as many inputs as a register has floats, or sums of them.
struct CodeSum {
#if defined(__AVX512F__)
  __m512i v;

  static CodeSum zero() { return {_mm512_setzero_si512()}; }
  void add(CodeSum other) { v = _mm512_add_epi32(v, other.v); }
  float value() const { return static_cast<float>(_mm512_reduce_add_epi32(v)); }
#else
  int32_t v;

  static CodeSum zero() { return {0}; }
  void add(CodeSum other) { v += other.v; }
  float value() const { return static_cast<float>(v); }
#endif
};

// Rounds a register of floats to codes, writes their bytes and returns them: code = low, or
// 256 * high + low with low in -128 .. 127 where `high` is given.
inline CodeSum store_codes(Vec scaled, int8_t* low, int8_t* high) {
#if defined(__AVX512F__)
  const __m512i code = _mm512_cvtps_epi32(scaled.v);
  __m512i bottom = code;
  if (high != nullptr) {
    const __m512i top = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8);
    bottom = _mm512_sub_epi32(code, _mm512_slli_epi32(top, 8));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(top));
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(bottom));
  return {code};
#else
  alignas(64) float lanes[Vec::width];
  round_even(scaled).store(lanes);
  CodeSum total = CodeSum::zero();
  for (int i = 0; i < Vec::width; ++i) {
    // The codes of a row with a NaN are never used, but its conversion would be undefined.
    const int32_t code = std::fabs(lanes[i]) < 65536.0f ? static_cast<int32_t>(lanes[i]) : 0;
    const int32_t top = high != nullptr ? (code + 128) >> 8 : 0;
    if (high != nullptr) high[i] = static_cast<int8_t>(top);
    low[i] = static_cast<int8_t>(code - top * 256);
    total.v += code;
  }
  return total;
#endif
}

}  // namespace infopt
