// Draws one token per row: softmax, min_p, top_k, top_p, and a pick from the cumulative
// distribution in id order. Nothing is sorted: a filter keeps the weights above a bound, which is
// found by bisection among the few that can matter, and the lowest ids of those equal to it.
#include "sampling.h"

#include <cmath>

#include "parallel.h"
#include "sampling_weights.h"

namespace infopt {
namespace {

constexpr int64_t kTokensPerThread = 1 << 14;

// The tokens that may be drawn: weights above `least`, and `ties` of those equal to it, the lowest
// ids first.
class Candidates {
 public:
  explicit Candidates(const Weights& weights) : w_(weights), mass_(weights.mass()) {}

  // Keeps weights of at least this share of the best, which is 1.
  void keep_likely(double share) {
    least_ = static_cast<float>(share);
    if (static_cast<double>(least_) < share) least_ = just_above(least_);
    mass_ = w_.gather(least_).mass_from(least_);
  }

  // Keeps exactly `count` of the tokens, or all where there are no more: the best ones.
  void keep_best(int64_t count) {
    // Each of `count` blocks has a weight of at least the smallest of their largest ones.
    float bound = least_;
    if (count <= w_.num_blocks()) bound = std::max(bound, kth_largest(w_.tops(), count, 0.0f));
    const WeightList list = w_.gather(bound);
    if (list.size <= count && bound == least_) return;
    least_ = kth_largest(list, count, bound);
    ties_ = count - list.count_from(just_above(least_));
    mass_ = list.mass_from(just_above(least_)) + ties_ * units_of(least_);
  }

  // Keeps the fewest of the likeliest tokens that reach this share of the mass.
  void keep_mass(double share) {
    const double wanted = std::ceil(share * static_cast<double>(mass_));
    const int64_t target = std::clamp(static_cast<int64_t>(wanted), int64_t{1}, mass_);
    // All weights below this together do not weigh what may be lost.
    const float negligible = static_cast<float>((mass_ - target) / w_.size()) / kWeightUnits;
    const WeightList list = w_.gather(std::max(least_, negligible));
    const float bound = largest_bound(std::max(least_, negligible), [&](float x) {
      return x <= least_ || list.mass_from(x) >= target;
    });
    const int64_t above = list.mass_from(just_above(bound)), each = units_of(bound);
    const int64_t needed = (target - above + each - 1) / each;
    ties_ = bound == least_ ? std::min(ties_, needed) : needed;
    least_ = bound;
    mass_ = above + ties_ * each;
  }

  // The token at which the cumulative mass exceeds this part (below 1) of the whole.
  int64_t at(double part) const {
    const auto part_units = static_cast<unsigned __int128>(part * 0x1p53);
    int64_t rest = static_cast<int64_t>(part_units * static_cast<uint64_t>(mass_) >> 53);
    int64_t ties = ties_;
    for (int64_t b = 0; b < w_.num_blocks(); ++b) {
      if (w_.top(b) < least_) continue;
      if (least_ == 0.0f && rest >= w_.mass(b)) {
        rest -= w_.mass(b);
        continue;
      }
      const int64_t end = std::min((b + 1) * kWeightBlock, w_.size());
      for (int64_t i = b * kWeightBlock; i < end; ++i) {
        if (w_[i] < least_ || (w_[i] == least_ && --ties < 0)) continue;
        rest -= units_of(w_[i]);
        if (rest < 0) return i;
      }
    }
    return 0;  // not reached: the masses add up exactly
  }

 private:
  const Weights& w_;
  float least_ = 0.0f;
  int64_t ties_ = INT64_MAX;
  int64_t mass_;

  static float kth_largest(const WeightList& list, int64_t k, float low) {
    return largest_bound(low, [&](float x) { return list.count_from(x) >= k; });
  }
};

int64_t draw(const float* logits, int64_t size, const DrawRow& row) {
  static thread_local Scratch scratch;
  const Weights weights(logits, size, row.temperature, scratch);
  if (!weights.are_numbers()) return 0;
  Candidates candidates(weights);
  if (row.min_p > 0) candidates.keep_likely(row.min_p);
  if (row.top_k > 0 && row.top_k < size) candidates.keep_best(row.top_k);
  if (row.top_p < 1) candidates.keep_mass(row.top_p);
  return candidates.at(row.number);
}

}  // namespace

void draw_tokens(const DrawArgs& args) {
  const int threads =
      threads_for(args.num_rows * args.vocab_size, kTokensPerThread, args.num_threads);
  parallel_for(args.num_rows, threads, [&](int64_t i) {
    args.tokens[i] = draw(args.logits + i * args.stride, args.vocab_size, args.rows[i]);
  });
}

}  // namespace infopt
