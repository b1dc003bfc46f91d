// Where the rows and tokens of a work item lie in memory, and which tokens a row sees.
#pragma once

#include <algorithm>

#include "attention.h"
#include "attention_codes.h"

namespace infopt {

// One key head with a block of query tokens of one sequence.
struct AttentionItem {
  int64_t sequence;  // row of the block tables
  int64_t kv_head;
  int64_t first_token, num_tokens;
  int64_t first_split, end_split;
  int64_t partial;  // first row in the partial results, for one split of a divided item; else -1
};

template <typename T>
class AttentionGeometry {
 public:
  explicit AttentionGeometry(const AttentionArgs& args)
      : a_(args), share_(args.num_heads / args.num_kv_heads) {}

  // Query heads per key head: they are the rows of a token.
  int64_t share() const { return share_; }

  int64_t num_rows(const AttentionItem& item) const { return item.num_tokens * share_; }

  const T* query(const AttentionItem& item, int64_t row) const {
    return static_cast<const T*>(a_.q) + offset(item, row);
  }

  T* out(const AttentionItem& item, int64_t row) const {
    return static_cast<T*>(a_.out) + offset(item, row);
  }

  // Tokens of the split that a row sees.
  Range visible(const AttentionItem& item, int64_t row, int64_t split) const {
    const int64_t position = a_.positions[item.first_token + row / share_];
    const int64_t start = split * kSplit;
    const int64_t oldest = a_.window > 0 ? position + 1 - a_.window : 0;
    const int64_t lo = std::max<int64_t>(0, oldest - start);
    const int64_t hi = std::min<int64_t>(kSplit, position + 1 - start);
    return {static_cast<int>(std::min<int64_t>(lo, kSplit)),
            static_cast<int>(std::max<int64_t>(hi, 0))};
  }

  bool has_quantized() const { return a_.quantized.data != nullptr && a_.quantized_width > 0; }

  // Rows of the split below this one are read quantized by a query row.
  int bound(const AttentionItem& item, int64_t row, int64_t split) const {
    const int64_t size = a_.block_size, position = a_.positions[item.first_token + row / share_];
    const int64_t end = position / size * size - a_.quantized.residual + 1;
    const int64_t old = end > 0 ? end / size * size : 0;
    return static_cast<int>(std::min<int64_t>(std::max<int64_t>(old - split * kSplit, 0), kSplit));
  }

  // Finds the quantized pages of a split.
  SplitCodes locate_codes(const AttentionItem& item, int64_t split) const {
    const QuantizedView& view = a_.quantized;
    SplitCodes at = {view.kind, static_cast<int>(view.group), {}, {}};
    const int32_t* table = a_.quantized_tables + item.sequence * a_.quantized_stride;
    const auto head = [&](int64_t index) {
      const int64_t page = index < a_.quantized_width ? table[index] : 0;
      return quantized_head(view.data + page * view.page_stride + item.kv_head * view.head_stride,
                            view.kind, view.group, a_.head_dim);
    };
    const int64_t count = kSplit / at.size;
    for (int g = 0; g < count; ++g) {
      at.groups[g] = head(split * count + g);
      at.ahead[g] = head((split + 1) * count + g).keys;
    }
    return at;
  }

  // Finds the tokens `all` of a split. Where a page does not hold whole groups they are copied
  // together into `keys` and `values` (kSplit x head_dim). Other tokens are never copied.
  SplitPointers<T> locate(const AttentionItem& item, int64_t split, Range all, T* keys,
                          T* values) const {
    SplitPointers<T> at = {};
    const int64_t start = split * kSplit, dim = a_.head_dim;
    if (a_.block_size % kGroup == 0) {
      for (int g = all.lo / kGroup; g * kGroup < all.hi; ++g) {
        at.keys[g] = token(a_.keys, item, start + g * kGroup);
        at.values[g] = token(a_.values, item, start + g * kGroup);
      }
      return at;
    }
    for (int g = 0; g < kGroups; ++g) {
      at.keys[g] = keys + g * kGroup * dim;
      at.values[g] = values + g * kGroup * dim;
    }
    for (int j = all.lo; j < all.hi; ++j) {
      std::copy_n(token(a_.keys, item, start + j), dim, keys + j * dim);
      std::copy_n(token(a_.values, item, start + j), dim, values + j * dim);
    }
    return at;
  }

 private:
  const AttentionArgs& a_;
  const int64_t share_;

  // Query heads of a key head lie side by side.
  int64_t offset(const AttentionItem& item, int64_t row) const {
    const int64_t token = item.first_token + row / share_;
    return (token * a_.num_heads + item.kv_head * share_ + row % share_) * a_.head_dim;
  }

  const T* token(const PageView& view, const AttentionItem& item, int64_t position) const {
    const int64_t index = position / a_.block_size;
    const int32_t* table = a_.block_tables + item.sequence * a_.table_stride;
    const int64_t page = index < a_.table_width ? table[index] : 0;
    return static_cast<const T*>(view.data) + page * view.page_stride +
           item.kv_head * view.head_stride + position % a_.block_size * a_.head_dim;
  }
};

}  // namespace infopt
