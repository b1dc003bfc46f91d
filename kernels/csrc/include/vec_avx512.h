// Sixteen floats in an AVX-512 register.
#pragma once

#include <immintrin.h>

#include "bf16.h"

namespace infopt {

struct Vec {
  static constexpr int width = 16;
  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec set(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const bf16* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // First n lanes, zeros behind.
  static Vec load(const float* p, int n) { return {_mm512_maskz_loadu_ps(mask(n), p)}; }
  static Vec load(const bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16(mask(n), p)); }

  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(bf16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow()); }
  void store(float* p, int n) const { _mm512_mask_storeu_ps(p, mask(n), v); }
  void store(bf16* p, int n) const { _mm256_mask_storeu_epi16(p, mask(n), narrow()); }

  static __mmask16 mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static Vec widen(__m256i h) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
  }
  __m256i narrow() const {
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh(v);
#else
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i half = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    half = _mm512_mask_or_epi32(half, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(half, 16));
#endif
  }
};

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Where either is a NaN the result is b.
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const __m512i bit = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  // 0xCA selects bits of `sign` where `bit` is set, of `magnitude` elsewhere.
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign.v),
                                                        _mm512_castps_si512(magnitude.v), 0xCA))};
}
inline Vec round_even(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x * 2^n for whole n; below the smallest float the result is denormal, then zero.
inline Vec scale_by_power(Vec x, Vec n) { return {_mm512_scalef_ps(x.v, n.v)}; }
// Lanes lo <= i < hi of a, the rest from b.
inline Vec select_range(Vec a, Vec b, int lo, int hi) {
  const __mmask16 m = static_cast<__mmask16>(Vec::mask(hi) & ~Vec::mask(lo));
  return {_mm512_mask_blend_ps(m, b.v, a.v)};
}

// Lane i of the result is the sum over the lanes of a[i]. Each sum uses the same tree:
// distance 8, 4, 2, 1. The inputs go in transposed 4 x 4, so that the results come out in order.
inline Vec sum_lanes(const Vec (&a)[16]) {
  __m512 s[4];
  for (int i = 0; i < 4; ++i) {
    const __m512 x0 = a[i].v, x1 = a[4 + i].v, x2 = a[8 + i].v, x3 = a[12 + i].v;
    const __m512 lo =
        _mm512_add_ps(_mm512_shuffle_f32x4(x0, x1, 0x44), _mm512_shuffle_f32x4(x0, x1, 0xEE));
    const __m512 hi =
        _mm512_add_ps(_mm512_shuffle_f32x4(x2, x3, 0x44), _mm512_shuffle_f32x4(x2, x3, 0xEE));
    s[i] = _mm512_add_ps(_mm512_shuffle_f32x4(lo, hi, 0x88), _mm512_shuffle_f32x4(lo, hi, 0xDD));
  }
  const __m512 p = _mm512_add_ps(_mm512_unpacklo_ps(s[0], s[1]), _mm512_unpackhi_ps(s[0], s[1]));
  const __m512 q = _mm512_add_ps(_mm512_unpacklo_ps(s[2], s[3]), _mm512_unpackhi_ps(s[2], s[3]));
  const __m512d pd = _mm512_castps_pd(p), qd = _mm512_castps_pd(q);
  return {_mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(pd, qd)),
                        _mm512_castpd_ps(_mm512_unpackhi_pd(pd, qd)))};
}

inline float sum(Vec a) {
  const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}

inline float largest(Vec a) { return _mm512_reduce_max_ps(a.v); }

}  // namespace infopt
