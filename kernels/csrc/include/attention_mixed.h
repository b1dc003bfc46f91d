// One split of cached rows that some query rows read quantized, in part or whole.
#pragma once

#include <type_traits>

#include "attention_codes_int.h"
#include "attention_geometry.h"
#include "scratch.h"

namespace infopt {

template <typename T>
class MixedSplit {
 public:
  explicit MixedSplit(int64_t dim) : dim_(dim) {
    static thread_local Scratch scratch;
    const int64_t folded = std::max<int64_t>(kRows * dim, kRows * kSplit);
    scratch.reserve(Scratch::size_of<float>(folded) + Scratch::size_of<float>(kRows * kSplit) +
                    Scratch::size_of<int8_t>(2 * folded));
    folded_ = scratch.take<float>(folded);
    new_scores_ = scratch.take<float>(kRows * kSplit);
    bytes_ = scratch.take<int8_t>(2 * folded);
  }

  // See attend_split. Row r reads the rows of `ranges[r]` below `bounds[r]` quantized.
  template <int R>
  void attend(const float* q, const SplitPointers<T>& at, const SplitCodes& codes,
              const Range* ranges, const int* bounds, float scale, float softcap, float* scores,
              Partial* partials, float* out) const {
    Range old[R], now[R], all_old = {kSplit, 0}, all_new = {kSplit, 0};
    for (int r = 0; r < R; ++r) {
      old[r] = {ranges[r].lo, std::min(ranges[r].hi, bounds[r])};
      now[r] = {std::max(ranges[r].lo, bounds[r]), ranges[r].hi};
      widen(all_old, old[r]);
      widen(all_new, now[r]);
    }
    if (!all_old.empty()) {
      score_old<R>(q, codes, all_old, scores);
    }
    if (!all_new.empty()) score_new<R>(q, at, all_new, now, scores);
    for (int r = 0; r < R; ++r) {
      partials[r] = softmax_row(scores + r * kSplit, ranges[r], scale, softcap);
    }
    std::memset(out, 0, R * dim_ * sizeof(float));
    if (!all_old.empty()) {
      add_old<R>(scores, codes, old, out);
      prefetch_steps(codes, dim_);  // last, when the address of the page beside it is translated
    }
    if (!all_new.empty()) add_new<R>(scores, at, now, out);
  }

 private:
  const int64_t dim_;
  float* folded_;      // kRows x max(dim, kSplit)
  float* new_scores_;  // kRows x kSplit
  int8_t* bytes_;      // two planes of what is folded

  static void widen(Range& all, Range range) {
    if (range.empty()) return;
    all = {std::min(all.lo, range.lo), std::max(all.hi, range.hi)};
  }

  template <int R>
  void score_old(const float* q, const SplitCodes& codes, Range all, float* scores) const {
    with_kind(codes.kind, [&](auto kind) {
      constexpr CodeKind K = decltype(kind)::value;
#if defined(INFOPT_BYTE_CODES)
      if constexpr (std::is_same_v<T, bf16> && !is_float_code(K)) {
        return score_codes_int<R, K>(q, dim_, codes, all, folded_, bytes_, scores);
      }
#endif
      score_codes<R, K>(q, dim_, codes, all, folded_, scores);
    });
  }

  template <int R>
  void add_old(const float* weights, const SplitCodes& codes, const Range* old, float* out) const {
    with_kind(codes.kind, [&](auto kind) {
      constexpr CodeKind K = decltype(kind)::value;
#if defined(INFOPT_BYTE_CODES)
      if constexpr (std::is_same_v<T, bf16> && !is_float_code(K)) {
        return add_code_values_int<R, K>(weights, codes, old, dim_, folded_, bytes_, out);
      }
#endif
      add_code_values<R, K>(weights, codes, old, dim_, folded_, out);
    });
  }

  // A block of 16 rows may hold both forms: each query row takes over what it reads in this one.
  template <int R>
  void score_new(const float* q, const SplitPointers<T>& at, Range all, const Range* now,
                 float* scores) const {
    const int end = (all.hi + kGroup - 1) / kGroup;
    for (int g = all.lo / kGroup; g < end; ++g) {
      if (g + kAhead < end) prefetch_group(at.keys[g + kAhead], dim_);
      prefetch_group(at.values[g], dim_);
      score_group<R>(q, dim_, at.keys[g], new_scores_ + g * kGroup);
    }
    for (int r = 0; r < R; ++r) {
      if (now[r].empty()) continue;
      std::memcpy(scores + r * kSplit + now[r].lo, new_scores_ + r * kSplit + now[r].lo,
                  (now[r].hi - now[r].lo) * sizeof(float));
    }
  }

  template <int R>
  void add_new(const float* weights, const SplitPointers<T>& at, const Range* now,
               float* out) const {
    Range ranges[R];
    for (int r = 0; r < R; ++r) ranges[r] = now[r].empty() ? Range{0, 0} : now[r];
    add_values_ranges<R>(weights, at.values, ranges, dim_, out);
  }
};

}  // namespace infopt
