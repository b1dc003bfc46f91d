// Cuts a batch into work items.
#pragma once

#include <algorithm>
#include <vector>

#include "attention_geometry.h"

namespace infopt {

class AttentionPlan {
 public:
  std::vector<AttentionItem> items;
  std::vector<AttentionItem> merges;  // divided items, whose partial results are to be merged
  int64_t num_partials = 0;           // rows of partial results
  int64_t cost = 0;                   // multiply-adds

  explicit AttentionPlan(const AttentionArgs& args) : a_(args) {
    const int64_t block = std::max<int64_t>(1, kBlockRows / share());
    for (int64_t i = a_.num_prefills - 1; i >= 0; --i) {
      const int64_t begin = a_.prefill_starts[i], end = a_.prefill_starts[i + 1];
      // Late blocks see most tokens: started first, they leave the short ones to fill gaps.
      for (int64_t token = begin + (end - begin - 1) / block * block; token >= begin;
           token -= block) {
        add(a_.num_decodes + i, token, std::min(block, end - token));
      }
    }
    for (int64_t i = 0; i < a_.num_decodes; ++i) add(i, i, 1);
  }

  // Makes every split of a decode an item with its own partial result.
  void divide_decodes() {
    std::vector<AttentionItem> divided;
    for (const AttentionItem& item : items) {
      if (item.num_tokens > 1 || item.end_split - item.first_split == 1) {
        divided.push_back(item);
        continue;
      }
      merges.push_back(item);
      merges.back().partial = num_partials;
      for (int64_t split = item.first_split; split < item.end_split; ++split) {
        AttentionItem part = item;
        part.first_split = split;
        part.end_split = split + 1;
        part.partial = num_partials;
        divided.push_back(part);
        num_partials += share();
      }
    }
    items.swap(divided);
  }

 private:
  static constexpr int64_t kBlockRows = 64;  // query rows of a prefill item

  const AttentionArgs& a_;

  int64_t share() const { return a_.num_heads / a_.num_kv_heads; }

  void add(int64_t sequence, int64_t first_token, int64_t num_tokens) {
    int64_t low = a_.positions[first_token], high = low;
    for (int64_t t = 1; t < num_tokens; ++t) {
      low = std::min(low, a_.positions[first_token + t]);
      high = std::max(high, a_.positions[first_token + t]);
    }
    const int64_t oldest = a_.window > 0 ? std::max<int64_t>(0, low + 1 - a_.window) : 0;
    const int64_t first = oldest / kSplit, end = high / kSplit + 1;
    for (int64_t head = 0; head < a_.num_kv_heads; ++head) {
      items.push_back({sequence, head, first_token, num_tokens, first, end, -1});
    }
    cost += (high + 1 - oldest) * num_tokens * a_.num_heads * a_.head_dim * 2;
  }
};

}  // namespace infopt
