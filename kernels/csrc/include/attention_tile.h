// Arithmetic of attention between a few query rows and one split of cached tokens.
//
// Bits are the same however many rows share a call: a score is a sum over head_dim in lanes of
// `Vec` and one tree over the lanes; a weighted value is one chain over the tokens in order; a row
// touches only the tokens it sees.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "vec_math.h"

namespace infopt {

constexpr int kSplit = 128;  // cached tokens per partial softmax; splits start at multiples of it
constexpr int kGroup = 16;   // cached tokens that lie one after the other in memory
constexpr int kGroups = kSplit / kGroup;
constexpr int kRows = 4;  // query rows that share the loads of keys and values
constexpr int kAhead = 2;  // groups between the one that is computed and the one that is prefetched

// Where the tokens of a split lie: group g holds tokens 16 g .. 16 g + 15 of the split.
template <typename T>
struct SplitPointers {
  const T* keys[kGroups];
  const T* values[kGroups];
};

// Tokens lo <= j < hi of a split that a row sees.
struct Range {
  int lo;
  int hi;
  bool empty() const { return lo >= hi; }
};

// The softmax over one split: maximum, sum of weights, and (elsewhere) the weighted values.
struct Partial {
  float maximum;
  float total;  // 0: the row sees nothing here
};

// Scores of R rows with the kGroup keys of one group.
template <int R, typename T>
inline void score_group(const float* q, int64_t dim, const T* keys, float* scores) {
  constexpr int slots = R == 3 ? 4 : R;
  constexpr int C = Vec::width / slots;  // keys per step: R x C sums fill one sum_lanes
  for (int c0 = 0; c0 < kGroup; c0 += C) {
    Vec acc[Vec::width];
    for (Vec& a : acc) a = Vec::zero();
    const T* key = keys + c0 * dim;
    for (int64_t d = 0; d < dim; d += Vec::width) {
      Vec x[R];
      for (int r = 0; r < R; ++r) x[r] = Vec::load(q + r * dim + d);
      for (int c = 0; c < C; ++c) {
        const Vec k = Vec::load(key + c * dim + d);
        for (int r = 0; r < R; ++r) acc[r * C + c] = fma(x[r], k, acc[r * C + c]);
      }
    }
    alignas(64) float lanes[Vec::width];
    sum_lanes(acc).store(lanes);
    for (int r = 0; r < R; ++r) {
      std::memcpy(scores + r * kSplit + c0, lanes + r * C, C * sizeof(float));
    }
  }
}

// Scales the scores of one row in place, hides those outside the range (up to whole registers), and
// returns the largest.
inline float scale_scores(float* scores, Range range, float scale, float softcap) {
  constexpr int W = Vec::width;
  const Vec hidden = Vec::set(-std::numeric_limits<float>::infinity());
  Vec highest = hidden;
  for (int j = range.lo / W * W; j < range.hi; j += W) {
    Vec s = Vec::load(scores + j) * Vec::set(scale);
    if (softcap != 0.0f) s = tanh(s / Vec::set(softcap)) * Vec::set(softcap);
    if (j < range.lo || j + W > range.hi) {
      const int lo = range.lo > j ? range.lo - j : 0;
      s = select_range(s, hidden, lo, range.hi - j < W ? range.hi - j : W);
    }
    s.store(scores + j);
    highest = max(s, highest);
  }
  return largest(highest);
}

// Turns the scores of one row into softmax weights in place; those outside the range become 0.
inline Partial softmax_row(float* scores, Range range, float scale, float softcap) {
  constexpr int W = Vec::width;
  const float maximum = scale_scores(scores, range, scale, softcap);
  Vec total = Vec::zero();
  for (int j = range.lo / W * W; j < range.hi; j += W) {
    const Vec weight = exp(Vec::load(scores + j) - Vec::set(maximum));
    weight.store(scores + j);
    total = total + weight;
  }
  return {maximum, sum(total)};
}

// out[r] += sum over tokens lo <= j < hi of weights[r][j] values[j], for N registers of head_dim.
template <int R, int N, typename T>
inline void add_values_block(const float* weights, const T* const* groups, Range range, int64_t dim,
                             int64_t d, float* out) {
  Vec acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = Vec::load(out + r * dim + d + n * Vec::width);
  }
  for (int j = range.lo; j < range.hi;) {
    const int end = (j / kGroup + 1) * kGroup < range.hi ? (j / kGroup + 1) * kGroup : range.hi;
    const T* value = groups[j / kGroup] + (j % kGroup) * dim + d;
    for (; j < end; ++j, value += dim) {
      Vec v[N];
      for (int n = 0; n < N; ++n) v[n] = Vec::load(value + n * Vec::width);
      for (int r = 0; r < R; ++r) {
        const Vec w = Vec::set(weights[r * kSplit + j]);
        for (int n = 0; n < N; ++n) acc[r][n] = fma(w, v[n], acc[r][n]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n].store(out + r * dim + d + n * Vec::width);
  }
}

template <int R, typename T>
inline void add_values(const float* weights, const T* const* groups, Range range, int64_t dim,
                       float* out) {
  constexpr int W = Vec::width;
  constexpr int N = W == 16 ? 4 : 2;  // R x N sums and N values fit 32 or 16 registers
  int64_t d = 0;
  for (; d + N * W <= dim; d += N * W) {
    add_values_block<R, N>(weights, groups, range, dim, d, out);
  }
  for (; d < dim; d += W) add_values_block<R, 1>(weights, groups, range, dim, d, out);
}

// Weighted values of R rows whose ranges may differ: first what single rows see before the common
// range, then the common range, then the rest. Every row goes through its tokens in order.
template <int R, typename T>
inline void add_values_ranges(const float* weights, const T* const* groups, const Range* ranges,
                              int64_t dim, float* out) {
  Range common = ranges[0];
  for (int r = 1; r < R; ++r) {
    common.lo = ranges[r].lo > common.lo ? ranges[r].lo : common.lo;
    common.hi = ranges[r].hi < common.hi ? ranges[r].hi : common.hi;
  }
  if (common.empty()) {
    for (int r = 0; r < R; ++r) {
      add_values<1>(weights + r * kSplit, groups, ranges[r], dim, out + r * dim);
    }
    return;
  }
  for (int r = 0; r < R; ++r) {
    const Range before = {ranges[r].lo, common.lo};
    if (!before.empty()) add_values<1>(weights + r * kSplit, groups, before, dim, out + r * dim);
  }
  add_values<R>(weights, groups, common, dim, out);
  for (int r = 0; r < R; ++r) {
    const Range after = {common.hi, ranges[r].hi};
    if (!after.empty()) add_values<1>(weights + r * kSplit, groups, after, dim, out + r * dim);
  }
}

// Starts to load the keys or values of a group. Blocks of different pages lie apart, where the
// hardware prefetches nothing.
template <typename T>
inline void prefetch_group(const T* block, int64_t dim) {
  constexpr int64_t line = 64;
  const char* bytes = reinterpret_cast<const char*>(block);
  const int64_t size = kGroup * dim * static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < size; i += line) __builtin_prefetch(bytes + i);
}

// One split for R rows that see at least one of its tokens each.
//
// `scores` is R x kSplit scratch; `out` (R x dim) receives the weighted values.
template <int R, typename T>
inline void attend_split(const float* q, int64_t dim, const SplitPointers<T>& at,
                         const Range* ranges, float scale, float softcap, float* scores,
                         Partial* partials, float* out) {
  Range all = ranges[0];
  for (int r = 1; r < R; ++r) {
    all.lo = ranges[r].lo < all.lo ? ranges[r].lo : all.lo;
    all.hi = ranges[r].hi > all.hi ? ranges[r].hi : all.hi;
  }
  const int end = (all.hi + kGroup - 1) / kGroup;
  for (int g = all.lo / kGroup; g < end; ++g) {
    if (g + kAhead < end) prefetch_group(at.keys[g + kAhead], dim);
    prefetch_group(at.values[g], dim);
    score_group<R>(q, dim, at.keys[g], scores + g * kGroup);
  }
  for (int r = 0; r < R; ++r) {
    partials[r] = softmax_row(scores + r * kSplit, ranges[r], scale, softcap);
  }
  std::memset(out, 0, R * dim * sizeof(float));
  add_values_ranges<R>(scores, at.values, ranges, dim, out);
}

// Adds a later split to a row's running result. The first split is copied.
inline void merge_split(Partial& state, float* sums, Partial part, const float* part_sums,
                        int64_t dim) {
  if (part.total == 0.0f) return;
  if (state.total == 0.0f) {
    state = part;
    std::memcpy(sums, part_sums, dim * sizeof(float));
    return;
  }
  const float maximum = state.maximum > part.maximum ? state.maximum : part.maximum;
  const Vec keep = exp(Vec::set(state.maximum - maximum));
  const Vec add = exp(Vec::set(part.maximum - maximum));
  for (int64_t d = 0; d < dim; d += Vec::width) {
    fma(Vec::load(sums + d), keep, Vec::load(part_sums + d) * add).store(sums + d);
  }
  alignas(64) float total[Vec::width];
  fma(Vec::set(state.total), keep, Vec::set(part.total) * add).store(total);
  state = {maximum, total[0]};
}

}  // namespace infopt
