// Runs the layers of a decoder: between two ops nothing is allocated, checked or looked up.
#include "stack.h"

#include <algorithm>
#include <cstring>

namespace infopt {
namespace {

// The arrays that a step needs, each for all tokens.
template <typename T>
struct Buffers {
  T* normed;
  T* total;  // the residual stream
  T* y;      // what attention or MLP adds to it
  T* qkv;
  T* q;
  T* attended;
  T* gate_up;
  T* activated;
  T* logits;       // of routers
  T* shared;       // what shared experts add
  int64_t* ids;    // of experts
  float* weights;  // of experts

  Buffers(const StackShape& shape, const std::vector<StackLayer>& layers, int64_t n, Scratch& s) {
    int64_t qkv_width = 0, q_width = 0, gate_width = 0, num_logits = 0, top_k = 0;
    for (const StackLayer& layer : layers) {
      qkv_width = std::max(qkv_width, layer.qkv.out_features);
      q_width = std::max(q_width, layer.output.in_features);
      gate_width = std::max(gate_width, layer.gate_up.out_features);
      if (layer.sparse == nullptr) continue;
      gate_width = std::max(gate_width, layer.sparse->shared_gate_up.out_features);
      num_logits = std::max(num_logits, layer.sparse->router.out_features);
      top_k = std::max(top_k, layer.sparse->routing.top_k);
    }
    const int64_t hidden = n * shape.hidden_size, num_shared = top_k > 0 ? hidden : 0;
    s.reserve(3 * Scratch::size_of<T>(hidden) + Scratch::size_of<T>(n * qkv_width) +
              2 * Scratch::size_of<T>(n * q_width) + 2 * Scratch::size_of<T>(n * gate_width) +
              Scratch::size_of<T>(n * num_logits) + Scratch::size_of<T>(num_shared) +
              Scratch::size_of<int64_t>(n * top_k) + Scratch::size_of<float>(n * top_k));
    normed = s.take<T>(hidden);
    total = s.take<T>(hidden);
    y = s.take<T>(hidden);
    qkv = s.take<T>(n * qkv_width);
    q = s.take<T>(n * q_width);
    attended = s.take<T>(n * q_width);
    gate_up = s.take<T>(n * gate_width);
    activated = s.take<T>(n * gate_width);
    logits = s.take<T>(n * num_logits);
    shared = s.take<T>(num_shared);
    ids = s.take<int64_t>(n * top_k);
    weights = s.take<float>(n * top_k);
  }
};

template <typename T>
class StackRun {
 public:
  StackRun(const StackShape& shape, const std::vector<StackLayer>& layers, const StackArgs& args,
           Scratch& scratch)
      : shape_(shape),
        a_(args),
        b_(shape, layers, args.num_tokens, scratch),
        block_size_(layers.empty() ? 0 : layers[0].block_size) {}

  void begin() const {
    std::memcpy(b_.total, a_.x, sizeof(T) * a_.num_tokens * shape_.hidden_size);
  }

  void layer(const StackLayer& layer, size_t index) const {
    index == 0 ? norm(b_.total, layer.input_norm, b_.normed)
               : add_and_norm(layer.input_norm, b_.normed);
    multiply(layer.qkv, b_.normed, b_.qkv);
    rotate(layer);
    if (a_.queries != nullptr) keep_queries(layer, index);
    attend(layer);
    if (layer.pre_mlp_norm == nullptr) {
      add_and_norm(layer.post_attention_norm, b_.normed);
      mlp(layer);
      return;
    }
    norm(b_.y, layer.post_attention_norm, b_.y);
    add_and_norm(layer.pre_mlp_norm, b_.normed);
    mlp(layer);
    norm(b_.y, layer.post_mlp_norm, b_.y);
  }

  void end() const { add_and_norm(shape_.final_norm, static_cast<T*>(a_.hidden)); }

 private:
  const StackShape& shape_;
  const StackArgs& a_;
  const Buffers<T> b_;
  const int64_t block_size_;

  // All layers have equally many query heads where this is asked for.
  void keep_queries(const StackLayer& layer, size_t index) const {
    const int64_t size = a_.num_tokens * layer.output.in_features;
    std::memcpy(static_cast<T*>(a_.queries) + index * size, b_.q, sizeof(T) * size);
  }

  void attend(const StackLayer& layer) const {
    const StackGroup& group = a_.groups[layer.group];
    if (group.num_jobs > 0) quantize(layer, group);
    AttentionArgs a = {};
    a.q = b_.q;
    a.keys = layer.keys;
    a.values = layer.values;
    a.out = b_.attended;
    a.positions = group.rows != nullptr ? group.rows : a_.positions;
    a.block_tables = group.block_tables;
    a.prefill_starts = a_.prefill_starts;
    a.table_stride = group.table_stride;
    a.table_width = group.table_width;
    a.num_decodes = a_.num_decodes;
    a.num_prefills = a_.num_prefills;
    a.num_heads = layer.output.in_features / layer.head_dim;
    a.num_kv_heads = layer.num_kv_heads;
    a.head_dim = layer.head_dim;
    a.block_size = layer.block_size;
    a.window = group.window;
    a.scale = shape_.attention_scale;
    a.softcap = shape_.attention_softcap;
    a.num_threads = a_.num_threads;
    a.quantized = layer.quantized;
    a.quantized_tables = group.quantized_tables;
    a.quantized_stride = group.quantized_stride;
    a.quantized_width = group.quantized_width;
    paged_attention<T>(a);
    multiply(layer.output, b_.attended, b_.y);
  }

  void quantize(const StackLayer& layer, const StackGroup& group) const {
    quantize_pages<T>({layer.keys, layer.values, layer.quantized, group.jobs, group.num_jobs,
                       layer.num_kv_heads, layer.head_dim, layer.block_size, a_.num_threads});
  }

  void rotate(const StackLayer& layer) const {
    RotaryArgs a = {};
    a.qkv = b_.qkv;
    a.cos = a_.rotations[layer.rotation].cos;
    a.sin = a_.rotations[layer.rotation].sin;
    a.q = b_.q;
    a.keys = layer.keys;
    a.values = layer.values;
    a.slots = a_.groups[layer.group].slots;
    a.query_weight = layer.query_norm;
    a.key_weight = layer.key_norm;
    a.num_tokens = a_.num_tokens;
    a.num_heads = layer.output.in_features / layer.head_dim;
    a.num_kv_heads = layer.num_kv_heads;
    a.head_dim = layer.head_dim;
    a.block_size = layer.block_size;
    a.qkv_stride = layer.qkv.out_features;
    a.eps = shape_.head_eps;
    a.num_threads = a_.num_threads;
    rotary_and_write<T>(a);
  }

  void mlp(const StackLayer& layer) const {
    layer.sparse == nullptr ? gated(layer.gate_up, layer.down, b_.y)
                            : mixture(*layer.sparse, layer.sparse_index);
  }

  void gated(const Product& gate_up, const Product& down, T* y) const {
    multiply(gate_up, b_.normed, b_.gate_up);
    const int64_t size = down.in_features;
    gated_activation<T>({b_.gate_up, b_.activated, a_.num_tokens, size, 2 * size,
                         shape_.activation, a_.num_threads});
    multiply(down, b_.activated, y);
  }

  void mixture(const SparseLayer& sparse, int64_t index) const {
    const int64_t num_logits = sparse.router.out_features, k = sparse.routing.top_k;
    const auto num_experts = static_cast<int64_t>(sparse.experts->size());
    multiply(sparse.router, b_.normed, b_.logits);
    route<T>({b_.logits, sparse.bias, b_.ids, b_.weights, a_.num_tokens, num_experts, num_logits,
              sparse.routing, a_.num_threads});
    forget_padding(k);
    if (a_.expert_ids != nullptr) {
      std::copy_n(b_.ids, a_.num_tokens * k, a_.expert_ids + index * a_.num_tokens * k);
    }
    run_experts<T>(*sparse.experts, {b_.normed, b_.ids, b_.weights, b_.y, a_.num_tokens, k,
                                     shape_.hidden_size, shape_.activation, a_.num_threads});
    if (!sparse.has_shared()) return;
    gated(sparse.shared_gate_up, sparse.shared_down, b_.shared);
    const T* gate = sparse.is_gated ? b_.logits + num_experts : nullptr;
    add_shared<T>({b_.y, b_.shared, gate, b_.y, a_.num_tokens, shape_.hidden_size, num_logits,
                   a_.num_threads});
  }

  // Rows that write to the null page are computed for nothing: they go to no expert.
  void forget_padding(int64_t k) const {
    for (int64_t token = 0; token < a_.num_tokens; ++token) {
      if (a_.groups[0].slots[token] < block_size_) std::fill_n(b_.ids + token * k, k, -1);
    }
  }

  void norm(const T* x, const float* weight, T* normed) const {
    add_rms_norm<T>({x, nullptr, weight, normed, nullptr, a_.num_tokens, shape_.hidden_size,
                     shape_.hidden_size, shape_.eps, a_.num_threads});
  }

  // total += y, then the norm of total.
  void add_and_norm(const float* weight, T* normed) const {
    add_rms_norm<T>({b_.y, b_.total, weight, normed, b_.total, a_.num_tokens, shape_.hidden_size,
                     shape_.hidden_size, shape_.eps, a_.num_threads});
  }

  void multiply(const Product& product, const T* x, T* y) const {
    infopt::multiply(product, x, y, a_.num_tokens, a_.num_threads);
  }
};

}  // namespace

template <typename T>
void run_stack(const StackShape& shape, const std::vector<StackLayer>& layers,
               const StackArgs& args, Scratch& scratch) {
  if (args.num_tokens == 0) return;
  const StackRun<T> run(shape, layers, args, scratch);
  run.begin();
  for (size_t i = 0; i < layers.size(); ++i) run.layer(layers[i], i);
  run.end();
}

template void run_stack<float>(const StackShape&, const std::vector<StackLayer>&, const StackArgs&,
                               Scratch&);
template void run_stack<bf16>(const StackShape&, const std::vector<StackLayer>&, const StackArgs&,
                              Scratch&);

}  // namespace infopt
