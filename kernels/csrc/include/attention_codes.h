// Arithmetic of attention between a few query rows and quantized rows, in floats.
//
// Scales are folded into what is multiplied with codes: s = (q scale) . code + q . min, and
// o = sum (p scale) code + sum p min, so codes are only widened. As in attention_tile.h the bits of
// a row do not depend on the rows that share a call: lanes are rows or channels, each a chain.
#pragma once

#include "attention_tile.h"
#include "kv_codes.h"

namespace infopt {

constexpr int kBlockRowsOfKeys = 16;  // rows whose codes lie side by side
constexpr int kMaxGroups = kSplit / kBlockRowsOfKeys;

// Row groups of a split: group g holds rows g * size .. (g + 1) * size of it.
//
// Pages lie apart, where the hardware prefetches little. So each line of keys that is read asks for
// the line of values in its place, and each line of values for the keys of the next split.
struct SplitCodes {
  CodeKind kind;
  int size;
  QuantizedHead groups[kMaxGroups];
  const uint8_t* ahead[kMaxGroups];  // keys of the next split (the null page behind the last)
};

// Scales and minima of the next split, which are needed before its codes.
inline void prefetch_steps(const SplitCodes& at, int64_t dim) {
  if (is_float_code(at.kind)) return;
  for (int g = 0; g * at.size < kSplit; ++g) {
    const int64_t size = 4 * (dim + at.size);  // they lie before the keys
    for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(at.ahead[g] - size + i);
  }
}

// scaled = q * scale, and the sum of q * min: what a row's scores with one group need.
inline float fold_query(const float* q, const QuantizedHead& head, int64_t dim, float* scaled) {
  Vec constant = Vec::zero();
  for (int64_t d = 0; d < dim; d += Vec::width) {
    const Vec x = Vec::load(q + d);
    (x * load_scales(head.key_scale + d)).store(scaled + d);
    constant = fma(x, load_scales(head.key_min + d), constant);
  }
  return sum(constant);
}

// Scores of R rows with B blocks of 16 rows of keys. `q` is R x dim; values lie `values` bytes
// behind the keys.
template <int R, int B, CodeKind K>
inline void score_blocks(const float* q, const float* constants, int64_t dim, const uint8_t* codes,
                         int64_t values, float* scores) {
  constexpr int W = Vec::width, N = B * kBlockRowsOfKeys / W, P = codes_per_word(K);
  const int64_t block_bytes = 4 * kBlockRowsOfKeys * dim / P;
  Vec acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = Vec::set(constants[r]);
  }
  for (int64_t d = 0; d < dim; d += P, codes += 4 * kBlockRowsOfKeys) {
    Words words[N];
    for (int n = 0; n < N; ++n) {
      const int row = n * W;
      const uint8_t* from = codes + row / kBlockRowsOfKeys * block_bytes +
                            4 * (row % kBlockRowsOfKeys);
      words[n] = Words::load(from);
      __builtin_prefetch(from + values);
    }
    for (int i = 0; i < P; ++i) {
      Vec key[N];
      for (int n = 0; n < N; ++n) key[n] = code_of<K>(words[n], i);
      for (int r = 0; r < R; ++r) {
        const Vec x = Vec::set(q[r * dim + d + i]);
        for (int n = 0; n < N; ++n) acc[r][n] = fma(x, key[n], acc[r][n]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n].store(scores + r * kSplit + n * W);
  }
}

// Scores of R rows with the rows `range` of a split (up to whole blocks), group by group. `folded`
// is R x dim scratch.
template <int R, CodeKind K>
inline void score_codes(const float* q, int64_t dim, const SplitCodes& at, Range range,
                        float* folded, float* scores) {
  constexpr int B = Vec::width == 16 ? 2 : 1;
  const int64_t block_bytes = 4 * kBlockRowsOfKeys * dim / codes_per_word(K);
  for (int g = range.lo / at.size; g * at.size < range.hi; ++g) {
    const QuantizedHead& head = at.groups[g];
    float constants[R] = {};
    const float* x = q;
    if constexpr (!is_float_code(K)) {
      for (int r = 0; r < R; ++r) {
        constants[r] = fold_query(q + r * dim, head, dim, folded + r * dim);
      }
      x = folded;
    }
    const int64_t values = head.values - head.keys;
    const int first = std::max(range.lo - g * at.size, 0) / kBlockRowsOfKeys;
    const int end = (std::min(range.hi - g * at.size, at.size) + kBlockRowsOfKeys - 1) /
                    kBlockRowsOfKeys;
    for (int b = first; b < end;) {
      const uint8_t* codes = head.keys + b * block_bytes;
      float* to = scores + g * at.size + b * kBlockRowsOfKeys;
      if (B > 1 && b + B <= end) {
        score_blocks<R, B, K>(x, constants, dim, codes, values, to);
        b += B;
      } else {
        score_blocks<R, 1, K>(x, constants, dim, codes, values, to);
        b += 1;
      }
    }
  }
}

// scaled[j] = weights[j] * scale of row j; returns the sum of weights[j] * min. Rows of one group,
// those outside the range become 0.
inline float fold_weights(const float* weights, const QuantizedHead& head, Range range, int size,
                          float* scaled) {
  constexpr int W = Vec::width;
  Vec constant = Vec::zero();
  for (int j = 0; j < size; j += W) {
    const int lo = std::min(std::max(range.lo - j, 0), W), hi = std::min(range.hi - j, W);
    if (hi <= lo) {
      Vec::zero().store(scaled + j);
      continue;
    }
    const Vec w = Vec::load(weights + j), zero = Vec::zero();
    select_range(w * load_scales(head.value_scale + j), zero, lo, hi).store(scaled + j);
    constant = constant + select_range(w * load_scales(head.value_min + j), zero, lo, hi);
  }
  return sum(constant);
}

// out[r] += sum over rows lo <= j < hi of a group of weights[r][j] codes[j], N registers of head_dim.
template <int R, int N, CodeKind K>
inline void add_codes_block(const float* weights, const uint8_t* codes, const uint8_t* ahead,
                            Range range, int64_t dim, int64_t d, float* out) {
  constexpr int W = Vec::width, P = codes_per_word(K);
  Vec acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = Vec::load(out + r * dim + d + n * W);
  }
  for (int word = range.lo / P; word * P < range.hi; ++word) {
    Words words[N];
    for (int n = 0; n < N; ++n) {
      const int64_t offset = 4 * (word * dim + d + n * W);
      words[n] = Words::load(codes + offset);
      __builtin_prefetch(ahead + offset);
    }
    const auto add = [&](int i) {
      Vec value[N];
      for (int n = 0; n < N; ++n) value[n] = code_of<K>(words[n], i);
      for (int r = 0; r < R; ++r) {
        const Vec w = Vec::set(weights[r * kSplit + word * P + i]);
        for (int n = 0; n < N; ++n) acc[r][n] = fma(w, value[n], acc[r][n]);
      }
    };
    if (word * P >= range.lo && word * P + P <= range.hi) {
      for (int i = 0; i < P; ++i) add(i);
    } else {
      const int end = std::min(range.hi - word * P, P);
      for (int i = std::max(range.lo - word * P, 0); i < end; ++i) add(i);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n].store(out + r * dim + d + n * W);
  }
}

template <int R, CodeKind K>
inline void add_codes(const float* weights, const uint8_t* codes, const uint8_t* ahead,
                      Range range, int64_t dim, float* out) {
  constexpr int W = Vec::width, N = W == 16 ? 4 : 2;
  if (range.empty()) return;
  int64_t d = 0;
  for (; d + N * W <= dim; d += N * W) {
    add_codes_block<R, N, K>(weights, codes, ahead, range, dim, d, out);
  }
  for (; d < dim; d += W) add_codes_block<R, 1, K>(weights, codes, ahead, range, dim, d, out);
}

// Weighted values of R rows with the rows `ranges` of a split. `folded` is R x kSplit scratch.
template <int R, CodeKind K>
inline void add_code_values(const float* weights, const SplitCodes& at, const Range* ranges,
                            int64_t dim, float* folded, float* out) {
  for (int g = 0; g * at.size < kSplit; ++g) {
    const int start = g * at.size;
    Range inside[R], common = {0, at.size};
    bool any = false;
    for (int r = 0; r < R; ++r) {
      inside[r] = {std::max(ranges[r].lo - start, 0), std::min(ranges[r].hi - start, at.size)};
      if (inside[r].empty()) inside[r] = {0, 0};
      any = any || !inside[r].empty();
      common = {std::max(common.lo, inside[r].lo), std::min(common.hi, inside[r].hi)};
    }
    if (!any) continue;
    const QuantizedHead& head = at.groups[g];
    const float* scaled = weights + start;
    if constexpr (!is_float_code(K)) {
      for (int r = 0; r < R; ++r) {
        if (inside[r].empty()) continue;
        const float constant = fold_weights(weights + r * kSplit + start, head, inside[r], at.size,
                                            folded + r * kSplit + start);
        float* to = out + r * dim;
        for (int64_t d = 0; d < dim; d += Vec::width) {
          (Vec::load(to + d) + Vec::set(constant)).store(to + d);
        }
      }
      scaled = folded + start;
    }
    if (common.empty()) {
      for (int r = 0; r < R; ++r) {
        add_codes<1, K>(scaled + r * kSplit, head.values, at.ahead[g], inside[r], dim, out + r * dim);
      }
      continue;
    }
    for (int r = 0; r < R; ++r) {
      add_codes<1, K>(scaled + r * kSplit, head.values, at.ahead[g], {inside[r].lo, common.lo}, dim,
                      out + r * dim);
    }
    add_codes<R, K>(scaled, head.values, at.ahead[g], common, dim, out);
    for (int r = 0; r < R; ++r) {
      add_codes<1, K>(scaled + r * kSplit, head.values, at.ahead[g], {common.hi, inside[r].hi}, dim,
                      out + r * dim);
    }
  }
}

}  // namespace infopt
