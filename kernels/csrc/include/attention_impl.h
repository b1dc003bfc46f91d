// Paged attention: who computes what. The arithmetic is in attention_tile.h.
//
// A work item is one key head with a block of query tokens of one sequence. It goes through the
// cached tokens split by split, in order. When there are fewer items than threads want, the splits
// of a decode become items of their own and are merged afterwards, in the same order: the same bits.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"
#include "attention_tile.h"
#include "parallel.h"
#include "scratch.h"

namespace infopt {

template <typename T>
class PagedAttention {
 public:
  explicit PagedAttention(const AttentionArgs& args)
      : a_(args), share_(args.num_heads / args.num_kv_heads) {}

  void run() {
    plan();
    const int num_threads = threads_for(cost_, kCostPerThread, a_.num_threads);
    const int64_t num_items = static_cast<int64_t>(items_.size());
    if (num_threads > 1 && num_items < kItemsPerThread * num_threads) divide_decodes();
    parallel_for(static_cast<int64_t>(items_.size()), num_threads,
                 [this](int64_t i) { compute(items_[i]); });
    const int64_t num_merges = static_cast<int64_t>(merges_.size());
    parallel_for(num_merges, num_threads, [this](int64_t i) { merge(merges_[i]); });
  }

 private:
  static constexpr int64_t kBlockRows = 64;          // query rows of a prefill item
  static constexpr int64_t kItemsPerThread = 4;      // fewer are divided, to balance
  static constexpr int64_t kCostPerThread = 1 << 17; // multiply-adds worth waking a thread

  struct Item {
    int64_t sequence;  // row of the block tables
    int64_t kv_head;
    int64_t first_token, num_tokens;
    int64_t first_split, end_split;
    int64_t partial;  // index of the first split's row 0 in the partial results; -1: write to out
  };

  const AttentionArgs a_;
  const int64_t share_;  // query heads per key head
  std::vector<Item> items_;
  std::vector<Item> merges_;
  std::vector<Partial> partials_;
  std::vector<float> partial_sums_;
  int64_t cost_ = 0;

  void plan() {
    const int64_t block = std::max<int64_t>(1, kBlockRows / share_);
    for (int64_t i = a_.num_prefills - 1; i >= 0; --i) {
      const int64_t begin = a_.prefill_starts[i], end = a_.prefill_starts[i + 1];
      // Late blocks see most tokens: started first, they leave the short ones to fill gaps.
      for (int64_t token = begin + (end - begin - 1) / block * block; token >= begin;
           token -= block) {
        add_items(a_.num_decodes + i, token, std::min(block, end - token));
      }
    }
    for (int64_t i = 0; i < a_.num_decodes; ++i) add_items(i, i, 1);
  }

  void add_items(int64_t sequence, int64_t first_token, int64_t num_tokens) {
    int64_t low = a_.positions[first_token], high = low;
    for (int64_t t = 1; t < num_tokens; ++t) {
      low = std::min(low, a_.positions[first_token + t]);
      high = std::max(high, a_.positions[first_token + t]);
    }
    const int64_t oldest = a_.window > 0 ? std::max<int64_t>(0, low + 1 - a_.window) : 0;
    const int64_t first = oldest / kSplit, end = high / kSplit + 1;
    for (int64_t head = 0; head < a_.num_kv_heads; ++head) {
      items_.push_back({sequence, head, first_token, num_tokens, first, end, -1});
    }
    cost_ += (high + 1 - oldest) * num_tokens * a_.num_heads * a_.head_dim * 2;
  }

  // Makes every split of a decode an item with its own partial result.
  void divide_decodes() {
    std::vector<Item> divided;
    int64_t num_partials = 0;
    for (const Item& item : items_) {
      if (item.num_tokens > 1 || item.end_split - item.first_split == 1) {
        divided.push_back(item);
        continue;
      }
      merges_.push_back(item);
      merges_.back().partial = num_partials;
      for (int64_t split = item.first_split; split < item.end_split; ++split) {
        Item part = item;
        part.first_split = split;
        part.end_split = split + 1;
        part.partial = num_partials;
        divided.push_back(part);
        num_partials += share_;
      }
    }
    items_.swap(divided);
    partials_.resize(num_partials);
    partial_sums_.resize(num_partials * a_.head_dim);
  }

  // Tokens of the split that the query at `position` sees.
  Range visible(int64_t position, int64_t split) const {
    const int64_t start = split * kSplit;
    const int64_t oldest = a_.window > 0 ? position + 1 - a_.window : 0;
    const int64_t lo = std::max<int64_t>(0, oldest - start);
    const int64_t hi = std::min<int64_t>(kSplit, position + 1 - start);
    return {static_cast<int>(std::min<int64_t>(lo, kSplit)),
            static_cast<int>(std::max<int64_t>(hi, 0))};
  }

  // Memory of one item.
  struct Buffers {
    float* q;         // rows x dim
    float* scores;    // kRows x kSplit
    float* sums;      // rows x dim: running result
    float* part;      // kRows x dim: result of one split
    Partial* states;  // rows
    Range* ranges;    // rows
    T* keys;          // kSplit x dim, when pages have to be copied together
    T* values;
  };

  Buffers buffers(int64_t rows) const {
    static thread_local Scratch scratch;
    const int64_t dim = a_.head_dim;
    scratch.reserve(2 * Scratch::size_of<float>(rows * dim) +
                    Scratch::size_of<float>(kRows * kSplit) +
                    Scratch::size_of<float>(kRows * dim) + Scratch::size_of<Partial>(rows) +
                    Scratch::size_of<Range>(rows) + 2 * Scratch::size_of<T>(kSplit * dim));
    Buffers b;
    b.q = scratch.take<float>(rows * dim);
    b.scores = scratch.take<float>(kRows * kSplit);
    b.sums = scratch.take<float>(rows * dim);
    b.part = scratch.take<float>(kRows * dim);
    b.states = scratch.take<Partial>(rows);
    b.ranges = scratch.take<Range>(rows);
    b.keys = scratch.take<T>(kSplit * dim);
    b.values = scratch.take<T>(kSplit * dim);
    return b;
  }

  void compute(const Item& item) {
    const int64_t rows = item.num_tokens * share_;
    const Buffers b = buffers(rows);
    load_queries(item, b.q);
    for (int64_t r = 0; r < rows; ++r) b.states[r] = {0.0f, 0.0f};
    for (int64_t split = item.first_split; split < item.end_split; ++split) {
      compute_split(item, split, rows, b);
    }
    if (item.partial < 0) {
      store(item, b.states, b.sums);
    } else {
      std::copy(b.states, b.states + rows, partials_.data() + item.partial);
      std::copy(b.sums, b.sums + rows * a_.head_dim,
                partial_sums_.data() + item.partial * a_.head_dim);
    }
  }

  void compute_split(const Item& item, int64_t split, int64_t rows, const Buffers& b) {
    Range all = {kSplit, 0};
    for (int64_t r = 0; r < rows; ++r) {
      b.ranges[r] = visible(a_.positions[item.first_token + r / share_], split);
      if (b.ranges[r].empty()) continue;
      all.lo = std::min(all.lo, b.ranges[r].lo);
      all.hi = std::max(all.hi, b.ranges[r].hi);
    }
    if (all.empty()) return;
    SplitPointers<T> at;
    locate(item, split, all, b, at);
    for (int64_t row = 0; row < rows;) {
      int64_t count = 0;
      while (count < kRows && row + count < rows && !b.ranges[row + count].empty()) ++count;
      if (count > 0) compute_rows(row, static_cast<int>(count), at, b);
      row += std::max<int64_t>(count, 1);
    }
  }

  void compute_rows(int64_t row, int count, const SplitPointers<T>& at, const Buffers& b) {
    switch (count) {
      case 1: return compute_rows<1>(row, at, b);
      case 2: return compute_rows<2>(row, at, b);
      case 3: return compute_rows<3>(row, at, b);
      default: return compute_rows<4>(row, at, b);
    }
  }

  template <int R>
  void compute_rows(int64_t row, const SplitPointers<T>& at, const Buffers& b) {
    const int64_t dim = a_.head_dim;
    Partial parts[R];
    attend_split<R>(b.q + row * dim, dim, at, b.ranges + row, a_.scale, a_.softcap, b.scores, parts,
                    b.part);
    for (int r = 0; r < R; ++r) {
      merge_split(b.states[row + r], b.sums + (row + r) * dim, parts[r], b.part + r * dim, dim);
    }
  }

  // Finds the pages of a split; copies the visible tokens together where a page does not hold whole
  // groups. Tokens outside `all` are never read.
  void locate(const Item& item, int64_t split, Range all, const Buffers& b,
              SplitPointers<T>& at) const {
    const int32_t* table = a_.block_tables + item.sequence * a_.table_stride;
    const int64_t start = split * kSplit, dim = a_.head_dim;
    if (a_.block_size % kGroup == 0) {
      for (int g = all.lo / kGroup; g * kGroup < all.hi; ++g) {
        at.keys[g] = row(a_.keys, table, item.kv_head, start + g * kGroup);
        at.values[g] = row(a_.values, table, item.kv_head, start + g * kGroup);
      }
      return;
    }
    for (int g = 0; g < kGroups; ++g) {
      at.keys[g] = b.keys + g * kGroup * dim;
      at.values[g] = b.values + g * kGroup * dim;
    }
    for (int j = all.lo; j < all.hi; ++j) {
      std::copy_n(row(a_.keys, table, item.kv_head, start + j), dim, b.keys + j * dim);
      std::copy_n(row(a_.values, table, item.kv_head, start + j), dim, b.values + j * dim);
    }
  }

  const T* row(const PageView& view, const int32_t* table, int64_t head, int64_t position) const {
    const int64_t index = position / a_.block_size;
    const int64_t page = index < a_.table_width ? table[index] : 0;
    return static_cast<const T*>(view.data) + page * view.page_stride + head * view.head_stride +
           position % a_.block_size * a_.head_dim;
  }

  // Offset of row r of an item in q and out: query heads of a key head lie side by side.
  int64_t offset(const Item& item, int64_t r) const {
    const int64_t token = item.first_token + r / share_;
    return (token * a_.num_heads + item.kv_head * share_ + r % share_) * a_.head_dim;
  }

  void load_queries(const Item& item, float* q) const {
    const int64_t dim = a_.head_dim;
    for (int64_t r = 0; r < item.num_tokens * share_; ++r) {
      const T* from = static_cast<const T*>(a_.q) + offset(item, r);
      for (int64_t d = 0; d < dim; d += Vec::width) Vec::load(from + d).store(q + r * dim + d);
    }
  }

  void store(const Item& item, const Partial* states, const float* sums) const {
    const int64_t dim = a_.head_dim;
    for (int64_t r = 0; r < item.num_tokens * share_; ++r) {
      T* to = static_cast<T*>(a_.out) + offset(item, r);
      const Vec total = Vec::set(states[r].total);
      for (int64_t d = 0; d < dim; d += Vec::width) {
        (Vec::load(sums + r * dim + d) / total).store(to + d);
      }
    }
  }

  // Merges the partial results of a divided decode in the order of its splits.
  void merge(const Item& item) {
    const int64_t dim = a_.head_dim;
    Partial* states = partials_.data() + item.partial;
    float* sums = partial_sums_.data() + item.partial * dim;
    for (int64_t i = share_; i < (item.end_split - item.first_split) * share_; ++i) {
      merge_split(states[i % share_], sums + i % share_ * dim, states[i], sums + i * dim, dim);
    }
    store(item, states, sums);
  }
};

}  // namespace infopt
