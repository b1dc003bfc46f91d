// Attention of one work item with AMX tiles, bfloat16 only.
#pragma once

#include "attention_geometry.h"
#include "attention_tiles.h"
#include "scratch.h"

#if defined(INFOPT_AMX)

namespace infopt {

// Goes through the splits of an item, like VectorItem.
class TileItem {
 public:
  static bool pays(const AttentionArgs& args, int64_t rows) {
    return args.quantized.data == nullptr && rows >= kMinRows && args.head_dim % kTileDims == 0 && amx_permitted();
  }

  TileItem(const AttentionArgs& args, const AttentionGeometry<bf16>& geometry,
           const AttentionItem& item)
      : a_(args), geometry_(geometry), item_(item), rows_(geometry.num_rows(item)) {
    take_memory();
    for (int64_t r = 0; r < rows_; ++r) {
      std::copy_n(geometry.query(item, r), a_.head_dim, queries_ + r * a_.head_dim);
      states_[r] = {0.0f, 0.0f};
    }
    std::fill(queries_ + rows_ * a_.head_dim, queries_ + padded() * a_.head_dim, bf16{0});
    configure_full_tiles();
  }
  TileItem(const TileItem&) = delete;
  TileItem& operator=(const TileItem&) = delete;
  ~TileItem() { _tile_release(); }

  const Partial* states() const { return states_; }
  const float* sums() const { return sums_; }

  void add_split(int64_t split) {
    Range all = {kSplit, 0}, common = {0, kSplit};
    for (int64_t r = 0; r < rows_; ++r) {
      ranges_[r] = geometry_.visible(item_, r, split);
      common.lo = std::max(common.lo, ranges_[r].lo);
      common.hi = std::min(common.hi, ranges_[r].hi);
      if (ranges_[r].empty()) continue;
      all.lo = std::min(all.lo, ranges_[r].lo);
      all.hi = std::max(all.hi, ranges_[r].hi);
    }
    if (all.empty()) return;
    if (common.empty()) common = {0, 0};
    const SplitPointers<bf16> at =
        geometry_.locate(item_, split, all, copied_keys_, copied_values_);
    score(at, all);
    weigh(common);
    std::memset(part_, 0, rows_ * a_.head_dim * sizeof(float));
    add_common_values(at, common);
    add_other_values(at, common);
    for (int64_t r = 0; r < rows_; ++r) {
      merge_split(states_[r], sums_ + r * a_.head_dim, parts_[r], part_ + r * a_.head_dim,
                  a_.head_dim);
    }
  }

 private:
  static constexpr int64_t kMinRows = 9;  // fewer are read-bound and faster with vectors

  const AttentionArgs& a_;
  const AttentionGeometry<bf16>& geometry_;
  const AttentionItem& item_;
  const int64_t rows_;
  bf16* queries_;      // padded rows x dim
  bf16* keys_;         // kSplit x dim: transposed tiles
  bf16* values_;       // kSplit x dim: tiles of token pairs
  bf16* weights_;      // padded rows x kSplit
  float* scores_;      // padded rows x kSplit
  float* sums_;        // rows x dim: running result
  float* part_;        // rows x dim: result of one split
  Partial* states_;    // rows
  Partial* parts_;     // rows
  Range* ranges_;      // rows
  bf16* copied_keys_;  // kSplit x dim, when pages have to be copied together
  bf16* copied_values_;

  int64_t padded() const { return (rows_ + kTileRows - 1) / kTileRows * kTileRows; }

  void take_memory() {
    static thread_local Scratch scratch;
    const int64_t dim = a_.head_dim;
    scratch.reserve(
        Scratch::size_of<bf16>(padded() * dim) + 4 * Scratch::size_of<bf16>(kSplit * dim) +
        Scratch::size_of<bf16>(padded() * kSplit) + Scratch::size_of<float>(padded() * kSplit) +
        2 * Scratch::size_of<float>(rows_ * dim) + 2 * Scratch::size_of<Partial>(rows_) +
        Scratch::size_of<Range>(rows_));
    queries_ = scratch.take<bf16>(padded() * dim);
    for (bf16** part : {&keys_, &values_, &copied_keys_, &copied_values_}) {
      *part = scratch.take<bf16>(kSplit * dim);
    }
    weights_ = scratch.take<bf16>(padded() * kSplit);
    scores_ = scratch.take<float>(padded() * kSplit);
    sums_ = scratch.take<float>(rows_ * dim);
    part_ = scratch.take<float>(rows_ * dim);
    states_ = scratch.take<Partial>(rows_);
    parts_ = scratch.take<Partial>(rows_);
    ranges_ = scratch.take<Range>(rows_);
  }

  void score(const SplitPointers<bf16>& at, Range all) {
    const int64_t dim = a_.head_dim;
    const int first = all.lo / kGroup, end = (all.hi + kGroup - 1) / kGroup;
    for (int g = first; g < end; ++g) transpose_keys(at.keys[g], dim, keys_ + g * kGroup * dim);
    finish_stores();
    for (int64_t r = 0; r < rows_; r += 2 * kTileRows) {
      for (int g = first; g < end; g += 2) {
        score_tiles(queries_ + r * dim, r + kTileRows < rows_, dim, keys_ + g * kGroup * dim,
                    g + 1 < end, scores_ + r * kSplit + g * kGroup);
      }
    }
  }

  void weigh(Range common) {
    for (int64_t r = 0; r < rows_; ++r) {
      parts_[r] = {0.0f, 0.0f};
      if (ranges_[r].empty()) continue;
      parts_[r] = round_weights(scores_ + r * kSplit, ranges_[r], common, a_.scale, a_.softcap,
                                weights_ + r * kSplit);
    }
  }

  void add_common_values(const SplitPointers<bf16>& at, Range common) {
    const int64_t dim = a_.head_dim;
    if (common.empty()) return;
    for (int j = common.lo / kTileDims * kTileDims; j < common.hi; j += kTileDims) {
      pair_values(at, j, common, dim, values_ + j * dim);
    }
    finish_stores();
    for (int64_t r = 0; r < rows_; r += kTileRows) {
      add_tiled_values(weights_ + r * kSplit, values_, common, dim,
                       std::min<int64_t>(kTileRows, rows_ - r), part_ + r * dim);
    }
  }

  // Adds what single rows see and others do not.
  void add_other_values(const SplitPointers<bf16>& at, Range common) {
    for (int64_t r = 0; r < rows_; r += kRows) {
      Range before[kRows] = {}, after[kRows] = {};
      const int64_t count = std::min<int64_t>(kRows, rows_ - r);
      for (int64_t i = 0; i < count; ++i) {
        const Range range = ranges_[r + i];
        if (range.empty()) continue;
        before[i] = {range.lo, common.empty() ? range.hi : common.lo};
        if (!common.empty()) after[i] = {common.hi, range.hi};
      }
      add_ranges(at, r, count, before);
      add_ranges(at, r, count, after);
    }
  }

  void add_ranges(const SplitPointers<bf16>& at, int64_t row, int64_t count, const Range* ranges) {
    const int64_t dim = a_.head_dim;
    if (count == kRows) {
      add_values_ranges<kRows>(scores_ + row * kSplit, at.values, ranges, dim, part_ + row * dim);
      return;
    }
    for (int64_t r = 0; r < count; ++r) {
      add_values<1>(scores_ + (row + r) * kSplit, at.values, ranges[r], dim,
                    part_ + (row + r) * dim);
    }
  }
};

}  // namespace infopt

#endif
