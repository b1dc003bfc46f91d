// Weights of the tokens of one row, and what filters leave of them.
//
// A weight is e^((logit - best) / temperature), so the best has exactly 1. Sums are taken over
// whole numbers of 2^-40: they are exact in any order, so filters and the final pick agree on where
// a token's share begins and ends.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bits.h"
#include "rows.h"
#include "scratch.h"
#include "vec_math.h"

namespace infopt {

constexpr int64_t kWeightBlock = 64;              // tokens whose largest weight and mass are kept
constexpr float kWeightUnits = 1099511627776.0f;  // 2^40 per weight of 1

inline int64_t units_of(float weight) { return static_cast<int64_t>(weight * kWeightUnits); }

// Some weights, in no order.
struct WeightList {
  const float* values;
  int64_t size;

  int64_t count_from(float bound) const {
    int32_t count = 0;  // 32 bits: as wide as a weight, so that the loop becomes vectors
    for (int64_t i = 0; i < size; ++i) count += values[i] >= bound;
    return count;
  }

  int64_t mass_from(float bound) const {
    int64_t mass = 0;
    for (int64_t i = 0; i < size; ++i) mass += values[i] >= bound ? units_of(values[i]) : 0;
    return mass;
  }
};

// The next larger weight: "at least this" is "above x".
inline float just_above(float x) { return from_bits(bits_of(x) + 1); }

// The largest weight for which is_enough holds. It must hold at `low`, and where it fails it must
// fail for all larger ones. Positive floats order like their bits, so those are bisected.
template <typename F>
inline float largest_bound(float low, const F& is_enough) {
  uint32_t yes = bits_of(low), no = bits_of(1.0f) + 1;
  while (no - yes > 1) {
    const uint32_t middle = yes + (no - yes) / 2;
    (is_enough(from_bits(middle)) ? yes : no) = middle;
  }
  return from_bits(yes);
}

class Weights {
 public:
  Weights(const float* logits, int64_t size, float temperature, Scratch& scratch) : size_(size) {
    num_blocks_ = (size + kWeightBlock - 1) / kWeightBlock;
    scratch.reserve(2 * Scratch::size_of<float>(size) + Scratch::size_of<float>(num_blocks_) +
                    Scratch::size_of<int64_t>(num_blocks_));
    values_ = scratch.take<float>(size);
    gathered_ = scratch.take<float>(size);
    tops_ = scratch.take<float>(num_blocks_);
    masses_ = scratch.take<int64_t>(num_blocks_);
    fill(logits, temperature);
  }

  // False where no weight is a number: all tokens are masked, or a logit is NaN or infinite.
  bool are_numbers() const { return are_numbers_; }
  int64_t size() const { return size_; }
  int64_t num_blocks() const { return num_blocks_; }
  float operator[](int64_t token) const { return values_[token]; }
  float top(int64_t block) const { return tops_[block]; }
  int64_t mass(int64_t block) const { return masses_[block]; }
  WeightList tops() const { return {tops_, num_blocks_}; }

  int64_t mass() const {
    int64_t total = 0;
    for (int64_t b = 0; b < num_blocks_; ++b) total += masses_[b];
    return total;
  }

  // All weights of at least `bound`; the list is overwritten by the next call.
  WeightList gather(float bound) const {
    int64_t count = 0;
    for (int64_t b = 0; b < num_blocks_; ++b) {
      if (tops_[b] < bound) continue;
      const int64_t end = std::min((b + 1) * kWeightBlock, size_);
      for (int64_t i = b * kWeightBlock; i < end; ++i) {
        gathered_[count] = values_[i];
        count += values_[i] >= bound;
      }
    }
    return {gathered_, count};
  }

 private:
  int64_t size_;
  int64_t num_blocks_;
  float* values_;
  float* gathered_;
  float* tops_;
  int64_t* masses_;
  bool are_numbers_;

  void fill(const float* logits, float temperature) {
    const Vec best = Vec::set(best_of(logits)), heat = Vec::set(temperature);
    Vec check = Vec::zero();
    for (int64_t b = 0; b < num_blocks_; ++b) {
      const int64_t first = b * kWeightBlock, count = std::min(kWeightBlock, size_ - first);
      Vec top = Vec::zero();
      for_each_vec(count, [&](int64_t i, int n) {
        const Vec weight = exp((load(logits + first + i, n) - best) / heat);
        const Vec own = select_range(weight, Vec::zero(), 0, n);
        store(own, values_ + first + i, n);
        top = max(top, own);
        check = check + own;
      });
      tops_[b] = largest(top);
    }
    are_numbers_ = sum(check) >= 0.0f;  // a NaN stays in a sum
    if (are_numbers_) add_up();
  }

  float best_of(const float* logits) const {
    Vec best = Vec::set(logits[0]);
    for_each_vec(size_, [&](int64_t i, int n) {
      best = max(best, select_range(load(logits + i, n), best, 0, n));
    });
    return largest(best);
  }

  void add_up() {
    for (int64_t b = 0; b < num_blocks_; ++b) {
      const int64_t first = b * kWeightBlock, count = std::min(kWeightBlock, size_ - first);
      masses_[b] = WeightList{values_ + first, count}.mass_from(0.0f);
    }
  }
};

}  // namespace infopt
