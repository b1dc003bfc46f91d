// Row-wise ops between the matrix products: arguments and entry points.
#pragma once

#include <cstdint>

#include "attention.h"

namespace infopt {

// normed = (x + residual) / sqrt(mean((x + residual)^2) + eps) * weight, row by row.
struct AddRmsNormArgs {
  const void* x;         // (num_rows, size), rows strided
  const void* residual;  // (num_rows, size), contiguous; null: none, then `total` is not written
  const float* weight;   // (size,)
  void* normed;          // (num_rows, size), contiguous
  void* total;           // x + residual, contiguous
  int64_t num_rows;
  int64_t size;
  int64_t x_stride;
  float eps;
  int num_threads;
};

enum class Activation { kSilu, kGeluTanh };

// out = act(gate) * up, with gate and up side by side in a row.
struct GatedActivationArgs {
  const void* gate_up;  // (num_rows, 2 * size), rows strided
  void* out;            // (num_rows, size), contiguous
  int64_t num_rows;
  int64_t size;
  int64_t stride;
  Activation kind;
  int num_threads;
};

// Norms and rotates queries and keys, writes keys and values into their pages.
struct RotaryArgs {
  const void* qkv;  // (num_tokens, (num_heads + 2 num_kv_heads) * head_dim), rows strided
  const void* cos;  // (num_tokens, head_dim / 2), contiguous
  const void* sin;
  void* q;  // (num_tokens, num_heads, head_dim), contiguous
  PageView keys;
  PageView values;
  const int64_t* slots;       // (num_tokens,): page * block_size + offset
  const float* query_weight;  // (head_dim,) or null: no norms
  const float* key_weight;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t qkv_stride;
  float eps;
  int num_threads;
};

template <typename T>
void add_rms_norm(const AddRmsNormArgs& args);
template <typename T>
void gated_activation(const GatedActivationArgs& args);
template <typename T>
void rotary_and_write(const RotaryArgs& args);

}  // namespace infopt
