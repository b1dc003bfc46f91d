// Attention of one work item with vector instructions, any type and head size.
#pragma once

#include "attention_mixed.h"

namespace infopt {

// Goes through the splits of an item and keeps the running result of every row.
template <typename T>
class VectorItem {
 public:
  VectorItem(const AttentionArgs& args, const AttentionGeometry<T>& geometry,
             const AttentionItem& item)
      : a_(args), geometry_(geometry), item_(item), rows_(geometry.num_rows(item)) {
    static thread_local Scratch scratch;
    const int64_t dim = a_.head_dim;
    scratch.reserve(2 * Scratch::size_of<float>(rows_ * dim) +
                    Scratch::size_of<float>(kRows * kSplit) + Scratch::size_of<float>(kRows * dim) +
                    Scratch::size_of<Partial>(rows_) + Scratch::size_of<Range>(rows_) +
                    2 * Scratch::size_of<T>(kSplit * dim));
    queries_ = scratch.take<float>(rows_ * dim);
    sums_ = scratch.take<float>(rows_ * dim);
    scores_ = scratch.take<float>(kRows * kSplit);
    part_ = scratch.take<float>(kRows * dim);
    states_ = scratch.take<Partial>(rows_);
    ranges_ = scratch.take<Range>(rows_);
    keys_ = scratch.take<T>(kSplit * dim);
    values_ = scratch.take<T>(kSplit * dim);
    for (int64_t r = 0; r < rows_; ++r) {
      const T* from = geometry.query(item, r);
      for (int64_t d = 0; d < dim; d += Vec::width) {
        Vec::load(from + d).store(queries_ + r * dim + d);
      }
      states_[r] = {0.0f, 0.0f};
    }
  }

  const Partial* states() const { return states_; }
  const float* sums() const { return sums_; }

  void add_split(int64_t split) {
    Range all = {kSplit, 0};
    for (int64_t r = 0; r < rows_; ++r) {
      ranges_[r] = geometry_.visible(item_, r, split);
      if (ranges_[r].empty()) continue;
      all.lo = std::min(all.lo, ranges_[r].lo);
      all.hi = std::max(all.hi, ranges_[r].hi);
    }
    if (all.empty()) return;
    const SplitPointers<T> at = geometry_.locate(item_, split, all, keys_, values_);
    // Later rows have higher bounds.
    const bool is_mixed = geometry_.has_quantized() && geometry_.bound(item_, rows_ - 1, split) > 0;
    const SplitCodes codes = is_mixed ? geometry_.locate_codes(item_, split) : SplitCodes{};
    for (int64_t row = 0; row < rows_;) {
      int64_t count = 0;
      while (count < kRows && row + count < rows_ && !ranges_[row + count].empty()) ++count;
      if (count > 0 && is_mixed) {
        add_mixed_rows(row, static_cast<int>(count), split, at, codes);
      } else if (count > 0) {
        add_rows(row, static_cast<int>(count), at);
      }
      row += std::max<int64_t>(count, 1);
    }
  }

 private:
  const AttentionArgs& a_;
  const AttentionGeometry<T>& geometry_;
  const AttentionItem& item_;
  const int64_t rows_;
  float* queries_;   // rows x dim
  float* sums_;      // rows x dim: running result
  float* scores_;    // kRows x kSplit
  float* part_;      // kRows x dim: result of one split
  Partial* states_;  // rows
  Range* ranges_;    // rows
  T* keys_;          // kSplit x dim, when pages have to be copied together
  T* values_;

  void add_rows(int64_t row, int count, const SplitPointers<T>& at) {
    switch (count) {
      case 1:
        return add_rows<1>(row, at);
      case 2:
        return add_rows<2>(row, at);
      case 3:
        return add_rows<3>(row, at);
      default:
        return add_rows<4>(row, at);
    }
  }

  void add_mixed_rows(int64_t row, int count, int64_t split, const SplitPointers<T>& at,
                      const SplitCodes& codes) {
    switch (count) {
      case 1:
        return add_mixed_rows<1>(row, split, at, codes);
      case 2:
        return add_mixed_rows<2>(row, split, at, codes);
      case 3:
        return add_mixed_rows<3>(row, split, at, codes);
      default:
        return add_mixed_rows<4>(row, split, at, codes);
    }
  }

  template <int R>
  void add_mixed_rows(int64_t row, int64_t split, const SplitPointers<T>& at,
                      const SplitCodes& codes) {
    const int64_t dim = a_.head_dim;
    Partial parts[R];
    int bounds[R];
    for (int r = 0; r < R; ++r) bounds[r] = geometry_.bound(item_, row + r, split);
    MixedSplit<T>(dim).template attend<R>(queries_ + row * dim, at, codes, ranges_ + row, bounds,
                                          a_.scale, a_.softcap, scores_, parts, part_);
    for (int r = 0; r < R; ++r) {
      merge_split(states_[row + r], sums_ + (row + r) * dim, parts[r], part_ + r * dim, dim);
    }
  }

  template <int R>
  void add_rows(int64_t row, const SplitPointers<T>& at) {
    const int64_t dim = a_.head_dim;
    Partial parts[R];
    attend_split<R>(queries_ + row * dim, dim, at, ranges_ + row, a_.scale, a_.softcap, scores_,
                    parts, part_);
    for (int r = 0; r < R; ++r) {
      merge_split(states_[row + r], sums_ + (row + r) * dim, parts[r], part_ + r * dim, dim);
    }
  }
};

}  // namespace infopt
