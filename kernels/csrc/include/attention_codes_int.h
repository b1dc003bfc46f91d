// The arithmetic of attention_codes.h with byte products, for bfloat16 models.
//
// What is multiplied with codes, q scale and p scale, becomes 15 bits: x ~ step (128 high + low)
// with signed bytes high and low. Sums of products are exact whole numbers, so their order does not
// matter. The error per number is 2^-15 of the row's largest one, where bfloat16 has 2^-9 of each.
#pragma once

#include "attention_codes.h"

#if defined(__AVX512VNNI__) && defined(__AVX512F__)

#define INFOPT_BYTE_CODES

namespace infopt {

constexpr float kPlaneSteps = 16256.0f;  // 128 * 127

// Two planes of signed bytes; returns the step.
inline float split_planes(const float* x, int64_t n, int8_t* high, int8_t* low) {
  Vec size = Vec::zero();
  for (int64_t i = 0; i < n; i += Vec::width) size = max(abs(Vec::load(x + i)), size);
  const float most = largest(size);
  const Vec inverse = Vec::set(most > 0.0f ? kPlaneSteps / most : 0.0f);
  for (int64_t i = 0; i < n; i += Vec::width) {
    const __m512i whole = _mm512_cvtps_epi32((Vec::load(x + i) * inverse).v);
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
    const __m512i lower = _mm512_sub_epi32(whole, _mm512_slli_epi32(upper, 7));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(upper));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(lower));
  }
  return most / kPlaneSteps;
}

// Bytes 4 i .. 4 i + 3 in every lane.
inline __m512i four_bytes(const int8_t* p, int64_t i) {
  int32_t word;
  std::memcpy(&word, p + 4 * i, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Codes 4 c .. 4 c + 3 of each word as bytes.
template <CodeKind K>
inline __m512i byte_codes(__m512i words, int c) {
  constexpr int bits = code_bits(K);
  if constexpr (bits == 8) {
    return words;
  } else {
    const __m512i mask = _mm512_set1_epi8((1 << bits) - 1);
    return _mm512_and_si512(_mm512_srli_epi32(words, bits * c), mask);
  }
}

inline Vec joined_planes(__m512i high, __m512i low) {
  return fma(Vec{_mm512_cvtepi32_ps(high)}, Vec::set(128.0f), Vec{_mm512_cvtepi32_ps(low)});
}

// Planes of R rows, `stride` bytes apart, high ones first.
struct Planes {
  const int8_t* bytes;
  int64_t stride;
  const int8_t* high(int r) const { return bytes + 2 * r * stride; }
  const int8_t* low(int r) const { return bytes + (2 * r + 1) * stride; }
};

template <int R, int B, CodeKind K>
inline void score_bytes(Planes q, const float* steps, const float* constants, int64_t dim,
                        const uint8_t* codes, int64_t values, float* scores) {
  constexpr int P = codes_per_word(K), C = P / 4;
  const int64_t block_bytes = 4 * kBlockRowsOfKeys * dim / P;
  __m512i high[R][B], low[R][B];
  for (int r = 0; r < R; ++r) {
    for (int b = 0; b < B; ++b) high[r][b] = low[r][b] = _mm512_setzero_si512();
  }
  for (int64_t w = 0; w < dim / P; ++w, codes += 4 * kBlockRowsOfKeys) {
    __m512i words[B];
    for (int b = 0; b < B; ++b) {
      words[b] = _mm512_loadu_si512(codes + b * block_bytes);
      __builtin_prefetch(codes + b * block_bytes + values);
    }
    for (int c = 0; c < C; ++c) {
      __m512i key[B];
      for (int b = 0; b < B; ++b) key[b] = byte_codes<K>(words[b], c);
      for (int r = 0; r < R; ++r) {
        const __m512i upper = four_bytes(q.high(r), w * C + c);
        const __m512i lower = four_bytes(q.low(r), w * C + c);
        for (int b = 0; b < B; ++b) {
          high[r][b] = _mm512_dpbusd_epi32(high[r][b], key[b], upper);
          low[r][b] = _mm512_dpbusd_epi32(low[r][b], key[b], lower);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int b = 0; b < B; ++b) {
      fma(joined_planes(high[r][b], low[r][b]), Vec::set(steps[r]), Vec::set(constants[r]))
          .store(scores + r * kSplit + b * kBlockRowsOfKeys);
    }
  }
}

// See score_codes. `bytes` is scratch for 2 R planes of dim.
template <int R, CodeKind K>
inline void score_codes_int(const float* q, int64_t dim, const SplitCodes& at, Range range,
                            float* folded, int8_t* bytes, float* scores) {
  constexpr int B = 2;
  const int64_t block_bytes = 4 * kBlockRowsOfKeys * dim / codes_per_word(K);
  for (int g = range.lo / at.size; g * at.size < range.hi; ++g) {
    const QuantizedHead& head = at.groups[g];
    float constants[R], steps[R];
    for (int r = 0; r < R; ++r) {
      constants[r] = fold_query(q + r * dim, head, dim, folded);
      steps[r] = split_planes(folded, dim, bytes + 2 * r * dim, bytes + (2 * r + 1) * dim);
    }
    const Planes planes = {bytes, dim};
    const int64_t values = head.values - head.keys;
    const int first = std::max(range.lo - g * at.size, 0) / kBlockRowsOfKeys;
    const int end = (std::min(range.hi - g * at.size, at.size) + kBlockRowsOfKeys - 1) /
                    kBlockRowsOfKeys;
    for (int b = first; b < end;) {
      const uint8_t* codes = head.keys + b * block_bytes;
      float* to = scores + g * at.size + b * kBlockRowsOfKeys;
      if (b + B <= end) {
        score_bytes<R, B, K>(planes, steps, constants, dim, codes, values, to);
        b += B;
      } else {
        score_bytes<R, 1, K>(planes, steps, constants, dim, codes, values, to);
        b += 1;
      }
    }
  }
}

// out[r] += step * sum of planes . codes over the words of a split, N registers of head_dim.
template <int R, int N, CodeKind K>
inline void add_bytes_block(Planes p, const float* steps, const SplitCodes& at, Range all,
                            int64_t dim, int64_t d, float* out) {
  constexpr int P = codes_per_word(K), C = P / 4, W = Vec::width;
  __m512i high[R][N], low[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) high[r][n] = low[r][n] = _mm512_setzero_si512();
  }
  for (int word = all.lo / P; word * P < all.hi; ++word) {
    const int in_group = word % (at.size / P);
    const int group = word * P / at.size;
    const int64_t offset = 4 * (in_group * dim + d);
    const uint8_t* codes = at.groups[group].values + offset;
    for (int n = 0; n < N; ++n) __builtin_prefetch(at.ahead[group] + offset + 4 * n * W);
    for (int c = 0; c < C; ++c) {
      __m512i upper[R], lower[R];
      for (int r = 0; r < R; ++r) {
        upper[r] = four_bytes(p.high(r), word * C + c);
        lower[r] = four_bytes(p.low(r), word * C + c);
      }
      for (int n = 0; n < N; ++n) {
        const __m512i value = byte_codes<K>(_mm512_loadu_si512(codes + 4 * n * W), c);
        for (int r = 0; r < R; ++r) {
          high[r][n] = _mm512_dpbusd_epi32(high[r][n], value, upper[r]);
          low[r][n] = _mm512_dpbusd_epi32(low[r][n], value, lower[r]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      float* to = out + r * dim + d + n * W;
      fma(joined_planes(high[r][n], low[r][n]), Vec::set(steps[r]), Vec::load(to)).store(to);
    }
  }
}

// See add_code_values. `bytes` is scratch for 2 R planes of kSplit.
template <int R, CodeKind K>
inline void add_code_values_int(const float* weights, const SplitCodes& at, const Range* ranges,
                                int64_t dim, float* folded, int8_t* bytes, float* out) {
  Range all = {kSplit, 0};
  float steps[R];
  for (int r = 0; r < R; ++r) {
    if (ranges[r].empty()) {
      std::memset(bytes + 2 * r * kSplit, 0, 2 * kSplit);
      steps[r] = 0.0f;
      continue;
    }
    all = {std::min(all.lo, ranges[r].lo), std::max(all.hi, ranges[r].hi)};
    float constant = 0.0f;
    for (int start = 0; start < kSplit; start += at.size) {
      const Range inside = {std::max(ranges[r].lo - start, 0),
                            std::min(ranges[r].hi - start, at.size)};
      if (inside.empty()) {
        std::memset(folded + start, 0, at.size * sizeof(float));
        continue;
      }
      constant += fold_weights(weights + r * kSplit + start, at.groups[start / at.size], inside,
                               at.size, folded + start);
    }
    float* to = out + r * dim;
    for (int64_t d = 0; d < dim; d += Vec::width) {
      (Vec::load(to + d) + Vec::set(constant)).store(to + d);
    }
    steps[r] = split_planes(folded, kSplit, bytes + 2 * r * kSplit, bytes + (2 * r + 1) * kSplit);
  }
  constexpr int N = R <= 2 ? 4 : 2;  // 2 R N sums and 2 R factors fit 32 registers
  const Planes planes = {bytes, kSplit};
  int64_t d = 0;
  for (; d + N * Vec::width <= dim; d += N * Vec::width) {
    add_bytes_block<R, N, K>(planes, steps, at, all, dim, d, out);
  }
  for (; d < dim; d += Vec::width) {
    add_bytes_block<R, 1, K>(planes, steps, at, all, dim, d, out);
  }
}

}  // namespace infopt

#endif
