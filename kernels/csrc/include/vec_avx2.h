// Eight floats in an AVX2 register.
#pragma once

#include <immintrin.h>

#include "bf16.h"

namespace infopt {

struct Vec {
  static constexpr int width = 8;
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec set(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load(const bf16* p) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // First n lanes, zeros behind.
  static Vec load(const float* p, int n) { return {_mm256_maskload_ps(p, mask(n))}; }
  static Vec load(const bf16* p, int n) {
    alignas(16) bf16 buffer[width] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer);
  }

  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(bf16* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow()); }
  void store(float* p, int n) const { _mm256_maskstore_ps(p, mask(n), v); }
  void store(bf16* p, int n) const {
    alignas(16) bf16 buffer[width];
    store(buffer);
    for (int i = 0; i < n; ++i) p[i] = buffer[i];
  }

  static __m256i mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec widen(__m128i h) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
  }
  __m128i narrow() const {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i half = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    half = _mm256_blendv_epi8(half, quiet, _mm256_castps_si256(is_nan));
    half = _mm256_srli_epi32(half, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  }
};

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// Where either is a NaN the result is b.
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_and_ps(bit, sign.v), _mm256_andnot_ps(bit, magnitude.v))};
}
inline Vec round_even(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x * 2^n for whole n. In two steps: the exponent field of one factor cannot hold n < -126.
inline Vec scale_by_power(Vec x, Vec n) {
  const __m256 range = _mm256_set1_ps(252.0f);
  const __m256 low = _mm256_sub_ps(_mm256_setzero_ps(), range);
  const __m256i whole = _mm256_cvtps_epi32(_mm256_max_ps(low, _mm256_min_ps(range, n.v)));
  const __m256i half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
  const __m256 scaled = _mm256_mul_ps(x.v, _mm256_castsi256_ps(first));
  return {_mm256_mul_ps(scaled, _mm256_castsi256_ps(second))};
}
// Lanes lo <= i < hi of a, the rest from b.
inline Vec select_range(Vec a, Vec b, int lo, int hi) {
  const __m256i inside = _mm256_andnot_si256(Vec::mask(lo), Vec::mask(hi));
  return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(inside))};
}

// Lane i of the result is the sum over the lanes of a[i]. Each sum uses the same tree:
// distance 4, 2, 1. The inputs go in transposed, so that the results come out in order.
inline Vec sum_lanes(const Vec (&a)[8]) {
  __m256 s[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 x = a[i].v, y = a[4 + i].v;
    s[i] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
  }
  const __m256 p = _mm256_add_ps(_mm256_unpacklo_ps(s[0], s[1]), _mm256_unpackhi_ps(s[0], s[1]));
  const __m256 q = _mm256_add_ps(_mm256_unpacklo_ps(s[2], s[3]), _mm256_unpackhi_ps(s[2], s[3]));
  const __m256d pd = _mm256_castps_pd(p), qd = _mm256_castps_pd(q);
  return {_mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(pd, qd)),
                        _mm256_castpd_ps(_mm256_unpackhi_pd(pd, qd)))};
}

inline float sum(Vec a) {
  const __m128 y = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}

inline float largest(Vec a) {
  const __m128 y = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

}  // namespace infopt
