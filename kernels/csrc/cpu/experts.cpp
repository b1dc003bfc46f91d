// Runs each expert once per block of tokens, with the rows that were routed to it side by side.
//
// An expert's product gives a row the same bits whatever shares its rows (in float32), and the
// results of a token are added in the order of its choices: so a token does not depend on others.
#include "experts.h"

#include <algorithm>
#include <cstring>

#include "rows.h"
#include "scratch.h"

namespace infopt {
namespace {

constexpr int64_t kMaxSlots = 8192;  // rows that are worked on at a time: bounds the memory
constexpr int64_t kElementsPerThread = 1 << 14;
constexpr int64_t kRowsPerWeight = 16;  // reading the weights takes as long as so many rows

// A slot is one choice of one token. Slots with an expert become rows, sorted by expert.
template <typename T>
class ExpertsRun {
 public:
  ExpertsRun(const std::vector<Expert>& experts, const ExpertsArgs& args, int64_t first_token,
             int64_t num_tokens, Scratch& scratch)
      : experts_(experts),
        a_(args),
        first_(first_token),
        num_tokens_(num_tokens),
        num_slots_(num_tokens * args.k),
        num_experts_(static_cast<int64_t>(experts.size())),
        hidden_(experts[0].gate_up.in_features),
        inner_(experts[0].down.in_features) {
    scratch.reserve(Scratch::size_of<int64_t>(num_slots_) +
                    2 * Scratch::size_of<int64_t>(num_experts_ + 1) +
                    2 * Scratch::size_of<T>(num_slots_ * hidden_) +
                    3 * Scratch::size_of<T>(num_slots_ * inner_));
    rows_ = scratch.take<int64_t>(num_slots_);
    starts_ = scratch.take<int64_t>(num_experts_ + 1);
    busy_ = scratch.take<int64_t>(num_experts_ + 1);
    gathered_ = scratch.take<T>(num_slots_ * hidden_);
    results_ = scratch.take<T>(num_slots_ * hidden_);
    gate_up_ = scratch.take<T>(2 * num_slots_ * inner_);
    activated_ = scratch.take<T>(num_slots_ * inner_);
  }

  void run() {
    sort();
    gather();
    if (experts_are_even()) {
      parallel_for(num_busy_, a_.num_threads, [&](int64_t i) { compute(busy_[i], 1); });
    } else {
      for (int64_t i = 0; i < num_busy_; ++i) compute(busy_[i], a_.num_threads);
    }
    add_up();
  }

 private:
  const std::vector<Expert>& experts_;
  const ExpertsArgs& a_;
  int64_t first_, num_tokens_, num_slots_, num_experts_, hidden_, inner_;
  int64_t num_busy_ = 0;
  int64_t* rows_;    // of each slot; -1 where it has no expert
  int64_t* starts_;  // first row of each expert
  int64_t* busy_;    // experts with rows
  T *gathered_, *results_, *gate_up_, *activated_;

  const int64_t* ids() const { return a_.ids + first_ * a_.k; }
  int64_t num_rows(int64_t expert) const { return starts_[expert + 1] - starts_[expert]; }
  int threads() const {
    return threads_for(num_slots_ * hidden_, kElementsPerThread, a_.num_threads);
  }

  void sort() {
    std::fill_n(starts_, num_experts_ + 1, int64_t{0});
    for (int64_t slot = 0; slot < num_slots_; ++slot) {
      if (ids()[slot] >= 0) ++starts_[ids()[slot] + 1];
    }
    for (int64_t e = 0; e < num_experts_; ++e) {
      if (starts_[e + 1] > 0) busy_[num_busy_++] = e;
      starts_[e + 1] += starts_[e];
    }
    // Each start moves to the next expert's, then all go back by one.
    for (int64_t slot = 0; slot < num_slots_; ++slot) {
      rows_[slot] = ids()[slot] < 0 ? -1 : starts_[ids()[slot]]++;
    }
    std::copy_backward(starts_, starts_ + num_experts_, starts_ + num_experts_ + 1);
    starts_[0] = 0;
  }

  void gather() const {
    parallel_ranges(num_tokens_, threads(), [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin * a_.k; slot < end * a_.k; ++slot) {
        if (rows_[slot] < 0) continue;
        const T* row = static_cast<const T*>(a_.x) + (first_ + slot / a_.k) * a_.x_stride;
        std::memcpy(gathered_ + rows_[slot] * hidden_, row, sizeof(T) * hidden_);
      }
    });
  }

  // Whether threads that take one expert each would be busy to the end.
  bool experts_are_even() const {
    int64_t total = 0, most = 0;
    for (int64_t i = 0; i < num_busy_; ++i) {
      const int64_t work = num_rows(busy_[i]) + kRowsPerWeight;
      total += work;
      most = std::max(most, work);
    }
    return most * a_.num_threads <= total;
  }

  void compute(int64_t expert, int num_threads) const {
    const int64_t row = starts_[expert], count = num_rows(expert);
    const T* x = gathered_ + row * hidden_;
    T *wide = gate_up_ + row * 2 * inner_, *activated = activated_ + row * inner_;
    multiply(experts_[expert].gate_up, x, wide, count, num_threads);
    gated_activation<T>({wide, activated, count, inner_, 2 * inner_, a_.activation, num_threads});
    multiply(experts_[expert].down, activated, results_ + row * hidden_, count, num_threads);
  }

  void add_up() const {
    parallel_ranges(num_tokens_, threads(), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) add_up(token);
    });
  }

  void add_up(int64_t token) const {
    T* y = static_cast<T*>(a_.y) + (first_ + token) * hidden_;
    const float* weights = a_.weights + (first_ + token) * a_.k;
    for_each_vec(hidden_, [&](int64_t i, int n) {
      Vec total = Vec::zero();
      for (int64_t j = 0; j < a_.k; ++j) {
        const int64_t row = rows_[token * a_.k + j];
        if (row < 0) continue;
        total = fma(Vec::set(weights[j]), load(results_ + row * hidden_ + i, n), total);
      }
      store(total, y + i, n);
    });
  }
};

}  // namespace

template <typename T>
void run_experts(const std::vector<Expert>& experts, const ExpertsArgs& args) {
  static thread_local Scratch scratch;
  const int64_t step = std::max<int64_t>(1, kMaxSlots / args.k);
  for (int64_t token = 0; token < args.num_tokens; token += step) {
    const int64_t count = std::min(step, args.num_tokens - token);
    ExpertsRun<T>(experts, args, token, count, scratch).run();
  }
}

template void run_experts<float>(const std::vector<Expert>&, const ExpertsArgs&);
template void run_experts<bf16>(const std::vector<Expert>&, const ExpertsArgs&);

}  // namespace infopt
