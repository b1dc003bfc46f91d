// Quantized rows of the KV cache: the layout of a page's head, and codes as registers of floats.
//
// A page holds a row group of one KV group. Its heads are runs of bytes: as float16 scales and
// minima of keys (head_dim each) and of values (rows each), codes of keys, codes of values.
// Codes lie in 32-bit words whose lanes are 16 rows (keys) or the channels (values); a word covers
// 4 n channels or rows, n = 8 / bits, code c of byte b being the (4 c + b)-th of them.
#pragma once

#include <cstdint>

#include "half.h"

namespace infopt {

enum class CodeKind : int { kInt8, kInt4, kInt2, kE4m3, kE5m2 };
constexpr int kCodeKinds = 5;

constexpr int code_bits(CodeKind kind) {
  return kind == CodeKind::kInt4 ? 4 : (kind == CodeKind::kInt2 ? 2 : 8);
}

// Float codes have no scales.
constexpr bool is_float_code(CodeKind kind) {
  return kind == CodeKind::kE4m3 || kind == CodeKind::kE5m2;
}

constexpr int codes_per_word(CodeKind kind) { return 32 / code_bits(kind); }

inline int64_t code_bytes(CodeKind kind, int64_t group, int64_t dim) {
  return group * dim * code_bits(kind) / 8;
}

inline int64_t quantized_head_bytes(CodeKind kind, int64_t group, int64_t dim) {
  const int64_t steps = is_float_code(kind) ? 0 : 4 * (group + dim);
  return 2 * code_bytes(kind, group, dim) + steps;
}

struct QuantizedHead {
  const uint8_t* keys;
  const uint8_t* values;
  const half* key_scale;
  const half* key_min;
  const half* value_scale;
  const half* value_min;
};

inline QuantizedHead quantized_head(const uint8_t* data, CodeKind kind, int64_t group,
                                    int64_t dim) {
  const int64_t codes = code_bytes(kind, group, dim);
  const half* steps = reinterpret_cast<const half*>(data);
  const uint8_t* keys = data + quantized_head_bytes(kind, group, dim) - 2 * codes;
  return {keys, keys + codes, steps, steps + dim, steps + 2 * dim, steps + 2 * dim + group};
}

// Calls f with the kind as a type: decltype(k)::value is a constant.
template <CodeKind K>
struct KindConstant {
  static constexpr CodeKind value = K;
};

template <typename F>
inline void with_kind(CodeKind kind, const F& f) {
  switch (kind) {
    case CodeKind::kInt8:
      return f(KindConstant<CodeKind::kInt8>{});
    case CodeKind::kInt4:
      return f(KindConstant<CodeKind::kInt4>{});
    case CodeKind::kInt2:
      return f(KindConstant<CodeKind::kInt2>{});
    case CodeKind::kE4m3:
      return f(KindConstant<CodeKind::kE4m3>{});
    case CodeKind::kE5m2:
      return f(KindConstant<CodeKind::kE5m2>{});
  }
}

// As many words as a register of floats has lanes.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

struct Words {
  __m512i v;

  static Words load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  Words bits(int shift, int mask) const {
    return {_mm512_and_si512(_mm512_srli_epi32(v, shift), _mm512_set1_epi32(mask))};
  }
  Words left(int shift) const { return {_mm512_slli_epi32(v, shift)}; }
  Words plus(int x) const { return {_mm512_add_epi32(v, _mm512_set1_epi32(x))}; }
  Words joined(Words x) const { return {_mm512_or_si512(v, x.v)}; }
  Vec to_float() const { return {_mm512_cvtepi32_ps(v)}; }
  Vec as_float() const { return {_mm512_castsi512_ps(v)}; }
  // Lanes of a where the word is above the bound, of b elsewhere.
  Vec above(int bound, Vec a, Vec b) const {
    const __mmask16 m = _mm512_cmpgt_epi32_mask(v, _mm512_set1_epi32(bound));
    return {_mm512_mask_blend_ps(m, b.v, a.v)};
  }
};

inline Words words_of(Vec x) { return {_mm512_castps_si512(x.v)}; }

#elif defined(__AVX2__) && defined(__FMA__)

struct Words {
  __m256i v;

  static Words load(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  Words bits(int shift, int mask) const {
    return {_mm256_and_si256(_mm256_srli_epi32(v, shift), _mm256_set1_epi32(mask))};
  }
  Words left(int shift) const { return {_mm256_slli_epi32(v, shift)}; }
  Words plus(int x) const { return {_mm256_add_epi32(v, _mm256_set1_epi32(x))}; }
  Words joined(Words x) const { return {_mm256_or_si256(v, x.v)}; }
  Vec to_float() const { return {_mm256_cvtepi32_ps(v)}; }
  Vec as_float() const { return {_mm256_castsi256_ps(v)}; }
  Vec above(int bound, Vec a, Vec b) const {
    const __m256i m = _mm256_cmpgt_epi32(v, _mm256_set1_epi32(bound));
    return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(m))};
  }
};

inline Words words_of(Vec x) { return {_mm256_castps_si256(x.v)}; }

#else

struct Words {
  uint32_t v[Vec::width];

  static Words load(const uint8_t* p) {
    Words w;
    std::memcpy(w.v, p, sizeof(w.v));
    return w;
  }
  template <typename F>
  Words each(F f) const {
    Words w;
    for (int i = 0; i < Vec::width; ++i) w.v[i] = f(v[i], i);
    return w;
  }
  Words bits(int shift, int mask) const {
    return each([&](uint32_t x, int) { return (x >> shift) & static_cast<uint32_t>(mask); });
  }
  Words left(int shift) const {
    return each([&](uint32_t x, int) { return x << shift; });
  }
  Words plus(int n) const {
    return each([&](uint32_t x, int) { return x + static_cast<uint32_t>(n); });
  }
  Words joined(Words o) const {
    return each([&](uint32_t x, int i) { return x | o.v[i]; });
  }
  Vec to_float() const {
    return lanewise([&](int i) { return static_cast<float>(static_cast<int32_t>(v[i])); });
  }
  Vec as_float() const {
    Vec r;
    std::memcpy(r.v, v, sizeof(v));
    return r;
  }
  Vec above(int bound, Vec a, Vec b) const {
    return lanewise([&](int i) { return static_cast<int32_t>(v[i]) > bound ? a.v[i] : b.v[i]; });
  }
};

inline Words words_of(Vec x) {
  Words w;
  std::memcpy(w.v, x.v, sizeof(w.v));
  return w;
}

#endif

// Float8 in the low byte of each word. Codes above the largest number are NaN.
template <CodeKind K>
inline Vec float8_of(Words byte) {
  constexpr bool is_e4m3 = K == CodeKind::kE4m3;
  constexpr int mantissa = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15;
  constexpr int largest = is_e4m3 ? 0x7e : 0x7b, first_normal = 1 << mantissa;
  constexpr float smallest = is_e4m3 ? 0.001953125f : 1.52587890625e-05f;  // 2^(1 - bias - mantissa)
  const Words size = byte.bits(0, 0x7f);
  const Vec normal = size.left(23 - mantissa).plus((127 - bias) << 23).as_float();
  Vec value = size.above(first_normal - 1, normal, size.to_float() * Vec::set(smallest));
  value = size.above(largest, Vec::set(__builtin_nanf("")), value);
  return words_of(value).joined(byte.bits(7, 1).left(31)).as_float();
}

// Code i of each word.
template <CodeKind K>
inline Vec code_of(Words words, int i) {
  constexpr int bits = code_bits(K);
  const Words code = words.bits(8 * (i % 4) + bits * (i / 4), (1 << bits) - 1);
  if constexpr (is_float_code(K)) return float8_of<K>(code);
  return code.to_float();
}

}  // namespace infopt
