// The experts of a mixture, each with the tokens that were routed to it: arguments and entry point.
#pragma once

#include <cstdint>
#include <vector>

#include "fused.h"
#include "product.h"

namespace infopt {

struct Expert {
  Product gate_up;
  Product down;
};

// y = sum over the choices of a token of weight * down(act(gate) * up), in the order of the
// choices.
struct ExpertsArgs {
  const void* x;         // (num_tokens, hidden_size), rows strided
  const int64_t* ids;    // (num_tokens, k), contiguous; -1 where there is no expert
  const float* weights;  // (num_tokens, k), contiguous
  void* y;               // (num_tokens, hidden_size), contiguous
  int64_t num_tokens;
  int64_t k;
  int64_t x_stride;
  Activation activation;
  int num_threads;
};

template <typename T>
void run_experts(const std::vector<Expert>& experts, const ExpertsArgs& args);

}  // namespace infopt
