// The choice of experts, and the shared expert: arguments and entry points.
#pragma once

#include <cstdint>

namespace infopt {

// How a layer chooses (infopt.ops.router.Routing).
struct Routing {
  int64_t top_k;
  int64_t num_groups;
  int64_t top_groups;
  bool is_sigmoid;
  bool renormalize;
  bool best_two;
  float factor;
};

// ids and weights of the best experts of each token; equal scores go to the lowest id.
struct RouteArgs {
  const void* logits;  // (num_tokens, num_experts), rows strided
  const float* bias;   // (num_experts,) for the choice alone; null: none
  int64_t* ids;        // (num_tokens, top_k), contiguous
  float* weights;      // (num_tokens, top_k), contiguous
  int64_t num_tokens;
  int64_t num_experts;
  int64_t stride;
  Routing routing;
  int num_threads;
};

// out = y + sigmoid(gate) * shared; without a gate out = y + shared.
struct AddSharedArgs {
  const void* y;       // (num_tokens, size), contiguous
  const void* shared;  // (num_tokens, size), contiguous
  const void* gate;    // one value per token, strided; null: none
  void* out;           // (num_tokens, size), contiguous; may be y
  int64_t num_tokens;
  int64_t size;
  int64_t gate_stride;
  int num_threads;
};

template <typename T>
void route(const RouteArgs& args);
template <typename T>
void add_shared(const AddSharedArgs& args);

}  // namespace infopt
