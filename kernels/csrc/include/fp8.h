// float8 (e4m3, finite): sign, four bits of exponent with a bias of 7, three of mantissa.
//
// Moved into a float16, whose exponent has a bias of 15, a value is itself divided by 256; all
// values are exact in float16, bfloat16 and float32, subnormal ones too. The two codes for NaN
// would become 480: weights that hold them are refused when they are packed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "bits.h"
#include "half.h"

namespace infopt {

struct fp8 {
  uint8_t bits;
};

constexpr float kLargestFp8 = 448.0f;

inline float to_float(fp8 x) {
  const int wide = x.bits;
  return to_float(half{static_cast<uint16_t>((wide & 0x80) << 8 | (wide & 0x7f) << 7)}) * 256.0f;
}

// The nearest value of float8, ties to even; beyond the largest it saturates. A NaN stays one.
//
// Adding and subtracting 2^20 times the power of two below x leaves three bits of mantissa; below
// 2^-6 all values have the same distance.
inline float round_to_fp8(float x) {
  constexpr uint32_t kExponent = 0x7f800000u, kSmallest = 121u << 23, kUp = 20u << 23;
  const float size = std::fabs(x), bounded = size > kLargestFp8 ? kLargestFp8 : size;
  const float coarse = from_bits(std::max(bits_of(bounded) & kExponent, kSmallest) + kUp);
  return std::copysign((bounded + coarse) - coarse, x);
}

#if defined(__AVX2__)

// Sixteen-bit words that hold a float8 each, as float16 of 1/256 of it.
inline __m128i half_words(__m128i words) {
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(words, _mm_set1_epi16(0x80)), 8);
  return _mm_or_si128(sign, _mm_slli_epi16(_mm_and_si128(words, _mm_set1_epi16(0x7f)), 7));
}

inline __m256i half_words(__m256i words) {
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x80)), 8);
  return _mm256_or_si256(sign,
                         _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x7f)), 7));
}

#endif

// Two inputs, which lie side by side, of as many outputs as a register holds.
struct Fp8Pair {
  Vec even, odd;

  static Fp8Pair load(const fp8* p) {
#if defined(__AVX512F__)
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const Vec even = {_mm512_cvtph_ps(half_words(both))};
    const Vec odd = {_mm512_cvtph_ps(half_words(_mm256_srli_epi16(both, 8)))};
#elif defined(__AVX2__)
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const Vec even = {_mm256_cvtph_ps(half_words(both))};
    const Vec odd = {_mm256_cvtph_ps(half_words(_mm_srli_epi16(both, 8)))};
#else
    const Vec even = lanewise([&](int i) { return to_float(p[2 * i]) / 256.0f; });
    const Vec odd = lanewise([&](int i) { return to_float(p[2 * i + 1]) / 256.0f; });
#endif
    return {even * Vec::set(256.0f), odd * Vec::set(256.0f)};
  }
};

#if defined(__AVX512F__)

// Thirty-two values as bfloat16, in their order: the exponent's bias goes from 7 to 127. Subnormal
// values have no exponent to move and are looked up.
inline __m512i bf16_pairs(const fp8* p) {
  const __m512i subnormal = _mm512_broadcast_i32x4(
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __m512i v = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i moved = _mm512_slli_epi16(_mm512_and_si512(v, _mm512_set1_epi16(0x7f)), 4);
  __m512i size = _mm512_add_epi16(moved, _mm512_set1_epi16(120 << 7));
  size = _mm512_mask_permutexvar_epi16(size, _mm512_testn_epi16_mask(v, _mm512_set1_epi16(0x78)), v,
                                       subnormal);
  const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(v, _mm512_set1_epi16(0x80)), 8);
  return _mm512_or_si512(size, sign);
}

#endif

// 2 * Vec::width values as bfloat16, in their order.
inline void widen_pairs(const fp8* p, bf16* out) {
#if defined(__AVX512F__)
  _mm512_storeu_si512(out, bf16_pairs(p));
#else
  const Fp8Pair pair = Fp8Pair::load(p);
  alignas(64) bf16 even[Vec::width], odd[Vec::width];
  pair.even.store(even);
  pair.odd.store(odd);
  for (int i = 0; i < Vec::width; ++i) {
    out[2 * i] = even[i];
    out[2 * i + 1] = odd[i];
  }
#endif
}

}  // namespace infopt
