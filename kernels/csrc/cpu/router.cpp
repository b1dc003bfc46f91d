// Chooses the experts of each token, row by row: a row's bits depend on its logits alone.
#include "router.h"

#include <algorithm>
#include <limits>

#include "parallel.h"
#include "rows.h"
#include "scratch.h"
#include "vec_math.h"

namespace infopt {
namespace {

constexpr int64_t kElementsPerThread = 1 << 13;
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kSmallestSum = 1e-20f;  // sigmoids can all vanish

// Scores of one row at a time.
template <typename T>
class Router {
 public:
  Router(const RouteArgs& args, Scratch& scratch) : a_(args), r_(args.routing) {
    scratch.reserve(2 * Scratch::size_of<float>(a_.num_experts) +
                    Scratch::size_of<float>(r_.num_groups) +
                    Scratch::size_of<bool>(a_.num_experts) +
                    Scratch::size_of<int64_t>(r_.top_groups));
    scores_ = scratch.take<float>(a_.num_experts);
    choice_ = scratch.take<float>(a_.num_experts);
    worth_ = scratch.take<float>(r_.num_groups);
    taken_ = scratch.take<bool>(a_.num_experts);
    groups_ = scratch.take<int64_t>(r_.top_groups);
  }

  void row(int64_t token) const {
    const T* logits = static_cast<const T*>(a_.logits) + token * a_.stride;
    r_.is_sigmoid ? sigmoids(logits) : softmax(logits);
    for (int64_t e = 0; e < a_.num_experts; ++e) {
      choice_[e] = a_.bias == nullptr ? scores_[e] : scores_[e] + a_.bias[e];
    }
    if (r_.num_groups > 1) keep_best_groups();
    int64_t* ids = a_.ids + token * r_.top_k;
    choose(choice_, a_.num_experts, r_.top_k, ids);
    weigh(ids, a_.weights + token * r_.top_k);
  }

 private:
  const RouteArgs& a_;
  const Routing& r_;
  float *scores_, *choice_, *worth_;
  bool* taken_;
  int64_t* groups_;

  void sigmoids(const T* logits) const {
    for_each_vec(a_.num_experts,
                 [&](int64_t i, int n) { store(sigmoid(load(logits + i, n)), scores_ + i, n); });
  }

  void softmax(const T* logits) const {
    Vec most = Vec::set(kLowest), total = Vec::zero();
    for_each_vec(a_.num_experts, [&](int64_t i, int n) {
      most = max(most, select_range(load(logits + i, n), Vec::set(kLowest), 0, n));
    });
    const Vec best = Vec::set(largest(most));
    for_each_vec(a_.num_experts, [&](int64_t i, int n) {
      const Vec power = exp(load(logits + i, n) - best);
      total = total + select_range(power, Vec::zero(), 0, n);
      store(power, scores_ + i, n);
    });
    const Vec sum_of_all = Vec::set(sum(total));
    for_each_vec(a_.num_experts, [&](int64_t i, int n) {
      store(load(scores_ + i, n) / sum_of_all, scores_ + i, n);
    });
  }

  // Puts the experts outside the best groups below all others.
  void keep_best_groups() const {
    const int64_t size = a_.num_experts / r_.num_groups;
    for (int64_t g = 0; g < r_.num_groups; ++g) worth_[g] = worth(choice_ + g * size, size);
    choose(worth_, r_.num_groups, r_.top_groups, groups_);
    for (int64_t g = 0; g < r_.num_groups; ++g) {
      if (std::find(groups_, groups_ + r_.top_groups, g) != groups_ + r_.top_groups) continue;
      std::fill_n(choice_ + g * size, size, kLowest);
    }
  }

  float worth(const float* scores, int64_t size) const {
    float first = kLowest, second = kLowest;
    for (int64_t i = 0; i < size; ++i) {
      second = std::max(second, std::min(first, scores[i]));
      first = std::max(first, scores[i]);
    }
    return r_.best_two ? first + second : first;
  }

  // Places of the largest values, best first; of equal ones the lowest place.
  void choose(const float* values, int64_t size, int64_t count, int64_t* places) const {
    std::fill_n(taken_, size, false);
    for (int64_t j = 0; j < count; ++j) {
      int64_t best = -1;
      for (int64_t i = 0; i < size; ++i) {
        if (!taken_[i] && (best < 0 || values[i] > values[best])) best = i;
      }
      taken_[best] = true;
      places[j] = best;
    }
  }

  void weigh(const int64_t* ids, float* weights) const {
    float total = 0.0f;
    for (int64_t j = 0; j < r_.top_k; ++j) total += weights[j] = scores_[ids[j]];
    const float divisor = r_.renormalize ? total + kSmallestSum : 1.0f;
    for (int64_t j = 0; j < r_.top_k; ++j) weights[j] = weights[j] / divisor * r_.factor;
  }
};

template <typename T>
float gate_of(const AddSharedArgs& a, int64_t token) {
  const Vec gate = load(static_cast<const T*>(a.gate) + token * a.gate_stride, 1);
  float lanes[Vec::width];
  sigmoid(gate).store(lanes);
  return lanes[0];
}

}  // namespace

template <typename T>
void route(const RouteArgs& args) {
  const int threads =
      threads_for(args.num_tokens * args.num_experts, kElementsPerThread, args.num_threads);
  parallel_ranges(args.num_tokens, threads, [&](int64_t begin, int64_t end) {
    static thread_local Scratch scratch;
    const Router<T> router(args, scratch);
    for (int64_t token = begin; token < end; ++token) router.row(token);
  });
}

template <typename T>
void add_shared(const AddSharedArgs& args) {
  const int threads =
      threads_for(args.num_tokens * args.size, 2 * kElementsPerThread, args.num_threads);
  parallel_ranges(args.num_tokens, threads, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const T* y = static_cast<const T*>(args.y) + token * args.size;
      const T* shared = static_cast<const T*>(args.shared) + token * args.size;
      T* out = static_cast<T*>(args.out) + token * args.size;
      const Vec gate = Vec::set(args.gate == nullptr ? 1.0f : gate_of<T>(args, token));
      for_each_vec(args.size, [&](int64_t i, int n) {
        store(load(y + i, n) + rounded<T>(gate * load(shared + i, n)), out + i, n);
      });
    }
  });
}

template void route<float>(const RouteArgs&);
template void route<bf16>(const RouteArgs&);
template void add_shared<float>(const AddSharedArgs&);
template void add_shared<bf16>(const AddSharedArgs&);

}  // namespace infopt
