// Drawing tokens from logits: arguments and entry point.
#pragma once

#include <cstdint>

namespace infopt {

// How one row is drawn. Filters act in this order, each on what the one before it left.
struct DrawRow {
  float temperature;  // above 0
  double min_p;       // least weight relative to the best; 0 is off
  int64_t top_k;      // most candidates; 0 or less is off
  double top_p;       // share of the mass to keep; 1 is off
  double number;      // in [0, 1): picks from the cumulative distribution in id order
};

struct DrawArgs {
  const float* logits;  // (num_rows, vocab_size), rows strided
  const DrawRow* rows;
  int64_t* tokens;  // (num_rows,)
  int64_t num_rows;
  int64_t vocab_size;
  int64_t stride;
  int num_threads;
};

constexpr int64_t kMaxVocab = 1 << 22;  // the fixed-point weights of a row add up to less than 2^63

void draw_tokens(const DrawArgs& args);

}  // namespace infopt
