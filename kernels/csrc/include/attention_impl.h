// Paged attention: runs the items of a plan on threads.
//
// An item goes through the cached tokens split by split, in order. When there are fewer items than
// threads want, the splits of a decode become items of their own and are merged afterwards, in the
// same order: the same bits.
#pragma once

#include <type_traits>
#include <vector>

#include "attention_plan.h"
#include "attention_tile_item.h"
#include "attention_vector.h"
#include "parallel.h"

namespace infopt {

template <typename T>
class PagedAttention {
 public:
  explicit PagedAttention(const AttentionArgs& args) : a_(args), geometry_(args), plan_(args) {}

  void run() {
    const int num_threads = threads_for(plan_.cost, kCostPerThread, a_.num_threads);
    if (num_threads > 1 && num_items() < kItemsPerThread * num_threads) plan_.divide_decodes();
    partials_.resize(plan_.num_partials);
    partial_sums_.resize(plan_.num_partials * a_.head_dim);
    parallel_for(num_items(), num_threads, [this](int64_t i) { compute(plan_.items[i]); });
    parallel_for(static_cast<int64_t>(plan_.merges.size()), num_threads,
                 [this](int64_t i) { merge(plan_.merges[i]); });
  }

 private:
  static constexpr int64_t kItemsPerThread = 4;       // fewer are divided, to balance
  static constexpr int64_t kCostPerThread = 1 << 17;  // multiply-adds worth waking a thread

  const AttentionArgs& a_;
  const AttentionGeometry<T> geometry_;
  AttentionPlan plan_;
  std::vector<Partial> partials_;
  std::vector<float> partial_sums_;

  int64_t num_items() const { return static_cast<int64_t>(plan_.items.size()); }

  void compute(const AttentionItem& item) {
#if defined(INFOPT_AMX)
    if constexpr (std::is_same_v<T, bf16>) {
      if (TileItem::pays(a_, geometry_.num_rows(item))) return compute_with<TileItem>(item);
    }
#endif
    compute_with<VectorItem<T>>(item);
  }

  template <typename Kernel>
  void compute_with(const AttentionItem& item) {
    Kernel kernel(a_, geometry_, item);
    for (int64_t split = item.first_split; split < item.end_split; ++split) {
      kernel.add_split(split);
    }
    if (item.partial < 0) return store(item, kernel.states(), kernel.sums());
    const int64_t rows = geometry_.num_rows(item);
    std::copy_n(kernel.states(), rows, partials_.data() + item.partial);
    std::copy_n(kernel.sums(), rows * a_.head_dim,
                partial_sums_.data() + item.partial * a_.head_dim);
  }

  void store(const AttentionItem& item, const Partial* states, const float* sums) const {
    const int64_t dim = a_.head_dim;
    for (int64_t r = 0; r < geometry_.num_rows(item); ++r) {
      T* to = geometry_.out(item, r);
      const Vec total = Vec::set(states[r].total);
      for (int64_t d = 0; d < dim; d += Vec::width) {
        (Vec::load(sums + r * dim + d) / total).store(to + d);
      }
    }
  }

  // Merges the partial results of a divided item in the order of its splits.
  void merge(const AttentionItem& item) {
    const int64_t dim = a_.head_dim, share = geometry_.share();
    Partial* states = partials_.data() + item.partial;
    float* sums = partial_sums_.data() + item.partial * dim;
    for (int64_t i = share; i < (item.end_split - item.first_split) * share; ++i) {
      merge_split(states[i % share], sums + i % share * dim, states[i], sums + i * dim, dim);
    }
    store(item, states, sums);
  }
};

}  // namespace infopt
