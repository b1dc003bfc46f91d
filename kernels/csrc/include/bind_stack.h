// The decoder stack as a Python object: checked once when it is built, and each step's batch before
// any layer runs.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind_pages.h"
#include "bind_product.h"
#include "bind_rows.h"
#include "bind_sparse.h"
#include "stack.h"

namespace infopt {

class DecoderStack {
 public:
  using Norms = std::vector<std::optional<Tensor>>;
  // Block tables, slots, window; rows, quantized tables and jobs, where there are some.
  using Group = std::tuple<Tensor, Tensor, int64_t, std::optional<Tensor>, std::optional<Tensor>,
                           std::optional<Tensor>>;
  using Rotation = std::pair<Tensor, Tensor>;         // cosines and sines of the batch

  DecoderStack(const Tensor& final_norm, double eps, double head_eps, double attention_scale,
               double attention_softcap, const std::string& activation, const Tensor& like)
      : final_norm_(final_norm), dtype_(like.scalar_type()) {
    check_compute_dtype(like, "like");
    check_dtype(final_norm, at::kFloat, "final_norm");
    check_dim(final_norm, 1, "final_norm");
    shape_.hidden_size = final_norm.size(0);
    shape_.final_norm = norm_weight(final_norm_, shape_.hidden_size, "final_norm");
    shape_.eps = static_cast<float>(eps);
    shape_.head_eps = static_cast<float>(head_eps);
    shape_.attention_scale = static_cast<float>(attention_scale);
    shape_.attention_softcap = static_cast<float>(attention_softcap);
    shape_.activation = activation_of(activation);
  }

  // Norms: input, post_attention, pre_mlp, post_mlp, query, key; None where there is none.
  // Products: qkv and output; gate_up and down, too, where the MLP is not sparse.
  void add_layer(const Norms& norms, const std::vector<PackedProduct>& products,
                 const Tensor& keys, const Tensor& values,
                 const std::optional<QuantizedPages>& quantized, int64_t group, int64_t rotation,
                 const std::shared_ptr<SparseMlp>& sparse) {
    TORCH_CHECK_VALUE(norms.size() == 6 && products.size() == (sparse == nullptr ? 4 : 2),
                      "a layer has six norms and four products, or two and a sparse MLP");
    check_same_pages(keys, values);
    StackLayer layer = {};
    layer.keys = view_of(keys, like_pages(keys), "keys");
    layer.values = view_of(values, like_pages(values), "values");
    if (quantized.has_value()) layer.quantized = quantized_view(*quantized, keys);
    layer.num_kv_heads = keys.size(1);
    layer.block_size = keys.size(2);
    layer.head_dim = keys.size(3);
    layer.group = group;
    layer.rotation = rotation;
    set_norms(norms, layer);
    set_attention(products, layer);
    sparse == nullptr ? set_mlp(products, layer) : set_sparse(*sparse, layer);
    layers_.push_back(layer);
    norms_.push_back(norms);
    products_.push_back(products);
    pages_.push_back({keys, values});
    sparse_.push_back(sparse);
    quantized_.push_back(quantized.has_value() ? std::get<0>(*quantized) : Tensor());
  }

  Tensor forward(const Tensor& x, const Tensor& positions, const std::vector<Group>& groups,
                 const std::vector<Rotation>& rotations,
                 const std::vector<int64_t>& prefill_starts, int64_t num_decodes,
                 const std::optional<Tensor>& queries, const std::optional<Tensor>& expert_ids) {
    check_dtype(x, dtype_, "x");
    check_contiguous(x, "x");
    check_shape(x, {x.size(0), shape_.hidden_size}, "x");
    check_dtype(positions, at::kLong, "positions");
    check_shape(positions, {x.size(0)}, "positions");
    check_contiguous(positions, "positions");
    StackArgs a = {};
    a.x = x.const_data_ptr();
    a.num_tokens = x.size(0);
    a.positions = positions.const_data_ptr<int64_t>();
    a.prefill_starts = prefill_starts.data();
    a.num_decodes = num_decodes;
    a.num_prefills = prefill_starts.empty() ? 0 : static_cast<int64_t>(prefill_starts.size()) - 1;
    a.num_threads = at::get_num_threads();
    a.queries = queries.has_value() ? room_for_queries(*queries, a.num_tokens) : nullptr;
    a.expert_ids = expert_ids.has_value() ? room_for_ids(*expert_ids, a.num_tokens) : nullptr;
    for (const Group& group : groups) a.groups.push_back(group_of(group, a));
    for (const Rotation& rotation : rotations) a.rotations.push_back(rotation_of(rotation, x));
    check_layers(a, groups);
    Tensor hidden = at::empty(x.sizes(), x.options());
    a.hidden = hidden.data_ptr();
    const pybind11::gil_scoped_release release;
    for_dtype(dtype_, [&](auto type) { run_stack<decltype(type)>(shape_, layers_, a, scratch_); });
    return hidden;
  }

 private:
  Tensor final_norm_;
  at::ScalarType dtype_;
  StackShape shape_ = {};
  std::vector<StackLayer> layers_;
  std::vector<Norms> norms_;  // these keep alive what the layers point to
  std::vector<std::vector<PackedProduct>> products_;
  std::vector<std::pair<Tensor, Tensor>> pages_;
  std::vector<Tensor> quantized_;
  std::vector<std::shared_ptr<SparseMlp>> sparse_;
  Scratch scratch_;

  const Tensor& like_pages(const Tensor& pages) const {
    check_dtype(pages, dtype_, "pages");
    return pages;
  }

  void set_norms(const Norms& norms, StackLayer& layer) const {
    const int64_t hidden = shape_.hidden_size;
    layer.input_norm = norm_weight(norms[0], hidden, "input_norm");
    layer.post_attention_norm = norm_weight(norms[1], hidden, "post_attention_norm");
    layer.pre_mlp_norm = norm_weight(norms[2], hidden, "pre_mlp_norm");
    layer.post_mlp_norm = norm_weight(norms[3], hidden, "post_mlp_norm");
    layer.query_norm = norm_weight(norms[4], layer.head_dim, "query_norm");
    layer.key_norm = norm_weight(norms[5], layer.head_dim, "key_norm");
    TORCH_CHECK_VALUE(norms[0].has_value() && norms[1].has_value(),
                      "input_norm and post_attention_norm are needed");
    TORCH_CHECK_VALUE(norms[2].has_value() == norms[3].has_value(),
                      "the MLP is normed on both sides or on none");
    TORCH_CHECK_VALUE(norms[4].has_value() == norms[5].has_value(),
                      "queries and keys are normed together or not at all");
  }

  void set_mlp(const std::vector<PackedProduct>& products, StackLayer& layer) const {
    layer.gate_up = products[2].value;
    layer.down = products[3].value;
    products[2].check(dtype_, shape_.hidden_size, "gate_up");
    products[3].check(dtype_, layer.gate_up.out_features / 2, "down");
    TORCH_CHECK_VALUE(layer.down.out_features == shape_.hidden_size,
                      "down must return hidden states of size ", shape_.hidden_size);
  }

  void set_sparse(const SparseMlp& sparse, StackLayer& layer) const {
    TORCH_CHECK_VALUE(sparse.hidden_size() == shape_.hidden_size, "experts take ",
                      sparse.hidden_size(), " inputs, got ", shape_.hidden_size);
    TORCH_CHECK_TYPE(sparse.dtype() == dtype_, "experts are ", sparse.dtype(), ", not ", dtype_);
    layer.sparse = &sparse.value();
    layer.sparse_index = num_sparse();
  }

  int64_t num_sparse() const {
    return std::count_if(layers_.begin(), layers_.end(),
                         [](const StackLayer& layer) { return layer.sparse != nullptr; });
  }

  void set_attention(const std::vector<PackedProduct>& products, StackLayer& layer) const {
    layer.qkv = products[0].value;
    layer.output = products[1].value;
    const int64_t hidden = shape_.hidden_size, heads = layer.output.in_features;
    products[0].check(dtype_, hidden, "qkv");
    products[1].check(dtype_, heads, "output");
    TORCH_CHECK_VALUE(layer.output.out_features == hidden,
                      "output must return hidden states of size ", hidden);
    TORCH_CHECK_VALUE(heads % layer.head_dim == 0 &&
                          layer.qkv.out_features ==
                              heads + 2 * layer.num_kv_heads * layer.head_dim,
                      "qkv returns ", layer.qkv.out_features, " values, which is not ", heads,
                      " of queries and ", layer.num_kv_heads, " keys and values");
    TORCH_CHECK_VALUE(layer.num_kv_heads > 0 &&
                          heads / layer.head_dim % layer.num_kv_heads == 0,
                      "query heads cannot share ", layer.num_kv_heads, " key heads");
  }

  void* room_for_queries(const Tensor& queries, int64_t num_tokens) const {
    const int64_t width = layers_.empty() ? 0 : layers_[0].output.in_features;
    for (const StackLayer& layer : layers_) {
      TORCH_CHECK_VALUE(layer.output.in_features == width, "layers differ in query heads");
    }
    check_dtype(queries, dtype_, "queries");
    check_shape(queries, {static_cast<int64_t>(layers_.size()), num_tokens, width}, "queries");
    check_contiguous(queries, "queries");
    return queries.data_ptr();
  }

  int64_t* room_for_ids(const Tensor& ids, int64_t num_tokens) const {
    int64_t top_k = 0;
    for (const StackLayer& layer : layers_) {
      if (layer.sparse == nullptr) continue;
      TORCH_CHECK_VALUE(top_k == 0 || top_k == layer.sparse->routing.top_k,
                        "layers differ in experts per token");
      top_k = layer.sparse->routing.top_k;
    }
    check_dtype(ids, at::kLong, "expert_ids");
    check_shape(ids, {num_sparse(), num_tokens, top_k}, "expert_ids");
    check_contiguous(ids, "expert_ids");
    return ids.data_ptr<int64_t>();
  }

  static const int64_t* rows_of(const std::optional<Tensor>& rows, int64_t num_tokens) {
    if (!rows.has_value()) return nullptr;
    check_dtype(*rows, at::kLong, "rows");
    check_shape(*rows, {num_tokens}, "rows");
    check_contiguous(*rows, "rows");
    return rows->const_data_ptr<int64_t>();
  }

  static StackGroup group_of(const Group& group, const StackArgs& a) {
    const auto& [tables, slots, window, rows, quantized, jobs] = group;
    check_dtype(tables, at::kInt, "block_tables");
    check_rows(tables, "block_tables");
    TORCH_CHECK_VALUE(tables.size(0) >= a.num_decodes + a.num_prefills, "block_tables has ",
                      tables.size(0), " rows for ", a.num_decodes + a.num_prefills, " sequences");
    TORCH_CHECK_VALUE(window >= 0 && a.num_decodes >= 0,
                      "window and num_decodes must not be negative");
    TORCH_CHECK_VALUE(a.num_decodes <= a.num_tokens, a.num_decodes, " decodes but ", a.num_tokens,
                      " tokens");
    check_dtype(slots, at::kLong, "slots");
    check_shape(slots, {a.num_tokens}, "slots");
    check_contiguous(slots, "slots");
    StackGroup g = {};
    g.block_tables = tables.const_data_ptr<int32_t>();
    g.slots = slots.const_data_ptr<int64_t>();
    g.table_stride = tables.stride(0);
    g.table_width = tables.size(1);
    g.window = window;
    g.rows = rows_of(rows, a.num_tokens);
    TORCH_CHECK_VALUE(quantized.has_value() == jobs.has_value(),
                      "quantized tables and jobs come together");
    if (quantized.has_value()) {
      check_dim(*quantized, 2, "quantized tables");
      g.quantized_tables = quantized->const_data_ptr<int32_t>();
      g.quantized_stride = quantized->stride(0);
      g.quantized_width = quantized->size(1);
      g.jobs = jobs->const_data_ptr<int64_t>();
      g.num_jobs = jobs->size(0);
    }
    return g;
  }

  static StackRotation rotation_of(const Rotation& rotation, const Tensor& x) {
    check_dim(rotation.first, 2, "cos");
    const int64_t half = rotation.first.size(1);
    return {infopt::rotation(rotation.first, x, half, "cos"),
            infopt::rotation(rotation.second, x, half, "sin"), half};
  }

  // Layers of a group share its tables, so each group is checked with the pages of one layer.
  void check_layers(const StackArgs& a, const std::vector<Group>& groups) const {
    std::vector<bool> is_checked(a.groups.size(), false);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const StackLayer& layer = layers_[i];
      const auto group = static_cast<size_t>(layer.group);
      TORCH_CHECK_INDEX(group < a.groups.size(), "no group ", layer.group);
      TORCH_CHECK_INDEX(static_cast<size_t>(layer.rotation) < a.rotations.size(), "no rotation ",
                        layer.rotation);
      TORCH_CHECK_VALUE(2 * a.rotations[layer.rotation].half == layer.head_dim,
                        "cos and sin are for heads of ", 2 * a.rotations[layer.rotation].half,
                        ", the pages for ", layer.head_dim);
      if (is_checked[group]) continue;
      is_checked[group] = true;
      const int64_t num_pages = pages_[i].first.size(0);
      check_slot_range(a.groups[group].slots, a.num_tokens, num_pages * layer.block_size);
      check_group(a, a.groups[group], layer, num_pages);
      check_quantized(a, groups[group], layer, quantized_[i], num_pages);
    }
  }

  static void check_quantized(const StackArgs& a, const Group& group, const StackLayer& layer,
                              const Tensor& data, int64_t num_pages) {
    const std::optional<Tensor>& tables = std::get<4>(group);
    TORCH_CHECK_VALUE(tables.has_value() == (layer.quantized.data != nullptr),
                      "layers with quantized pages need their tables, others have none");
    if (!tables.has_value()) return;
    check_quantized_tables(*tables, a.num_decodes + a.num_prefills, data.size(0));
    check_jobs(*std::get<5>(group), 1 + layer.quantized.group / layer.block_size, data.size(0),
               num_pages);
  }

  static void check_group(const StackArgs& a, const StackGroup& group, const StackLayer& layer,
                          int64_t num_pages) {
    AttentionArgs args = {};
    args.positions = group.rows != nullptr ? group.rows : a.positions;
    args.block_tables = group.block_tables;
    args.prefill_starts = a.prefill_starts;
    args.table_stride = group.table_stride;
    args.table_width = group.table_width;
    args.num_decodes = a.num_decodes;
    args.num_prefills = a.num_prefills;
    args.block_size = layer.block_size;
    args.window = group.window;
    check_tables(args, a.num_tokens, num_pages);
  }
};

}  // namespace infopt
