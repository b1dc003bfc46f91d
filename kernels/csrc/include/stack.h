// All layers of a decoder in one call: the ops of the other headers in the order of a layer, on
// memory that is reused from step to step.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "experts.h"
#include "fused.h"
#include "kv_quantize.h"
#include "product.h"
#include "router.h"
#include "scratch.h"

namespace infopt {

// A mixture of experts in the place of a layer's MLP.
struct SparseLayer {
  Product router;      // one logit per expert, and the gate of the shared expert
  const float* bias;   // for the choice alone; null: none
  Routing routing;
  const std::vector<Expert>* experts;
  Product shared_gate_up;  // without weights where there is no shared expert
  Product shared_down;
  bool is_gated;

  bool has_shared() const { return shared_down.packed != nullptr; }
};

// Norms are null where the model has none. With `pre_mlp_norm` the layer is a sandwich: what
// attention and MLP return is normed before it is added.
struct StackLayer {
  const float* input_norm;
  const float* post_attention_norm;
  const float* pre_mlp_norm;
  const float* post_mlp_norm;
  const float* query_norm;
  const float* key_norm;
  Product qkv;
  Product output;
  Product gate_up;  // this and the next are without weights where the MLP is sparse
  Product down;
  const SparseLayer* sparse;  // null: the MLP is dense
  int64_t sparse_index;       // place among the sparse layers
  PageView keys;
  PageView values;
  QuantizedView quantized;  // without data where the layer has one form alone
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t group;     // index into StackArgs::groups
  int64_t rotation;  // index into StackArgs::rotations
};

// What all layers share.
struct StackShape {
  int64_t hidden_size;
  float eps;       // of the norms
  float head_eps;  // of the norms of queries and keys
  float attention_scale;
  float attention_softcap;
  Activation activation;
  const float* final_norm;
};

struct StackGroup {
  const int32_t* block_tables;
  const int64_t* slots;
  int64_t table_stride;
  int64_t table_width;
  int64_t window;
  const int64_t* rows;              // of the tokens; null: their positions
  const int32_t* quantized_tables;  // null: none
  int64_t quantized_stride;
  int64_t quantized_width;
  const int64_t* jobs;  // row groups to quantize before anything is read
  int64_t num_jobs;
};

struct StackRotation {
  const void* cos;  // (num_tokens, head_dim / 2)
  const void* sin;
  int64_t half;  // head_dim / 2
};

// One step. Prefills as in AttentionArgs.
struct StackArgs {
  const void* x;  // (num_tokens, hidden_size), contiguous: embeddings
  void* hidden;   // (num_tokens, hidden_size): normed output of the last layer
  int64_t num_tokens;
  const int64_t* positions;
  const int64_t* prefill_starts;
  int64_t num_decodes;
  int64_t num_prefills;
  std::vector<StackGroup> groups;
  std::vector<StackRotation> rotations;
  int num_threads;
  void* queries;  // (num_layers, num_tokens, num_heads * head_dim): rotated queries, or null
  int64_t* expert_ids;  // (num_sparse_layers, num_tokens, top_k): experts of each token, or null
};

template <typename T>
void run_stack(const StackShape& shape, const std::vector<StackLayer>& layers,
               const StackArgs& args, Scratch& scratch);

}  // namespace infopt
