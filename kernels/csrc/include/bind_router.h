// Checks and calls of the router and of the shared expert's sum.
#pragma once

#include <ATen/Functions.h>

#include <tuple>
#include <utility>

#include "checks.h"
#include "router.h"

namespace infopt {

// top_k, num_groups, top_groups, is_sigmoid, renormalize, best_two, factor.
using RoutingTuple = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, double>;

inline Routing routing_of(const RoutingTuple& values, int64_t num_experts) {
  const auto& [top_k, num_groups, top_groups, is_sigmoid, renormalize, best_two, factor] = values;
  TORCH_CHECK_VALUE(num_groups > 0 && num_experts % num_groups == 0, num_experts,
                    " experts do not form ", num_groups, " groups");
  const int64_t size = num_experts / num_groups;
  TORCH_CHECK_VALUE(top_groups > 0 && top_groups <= num_groups, "cannot choose ", top_groups,
                    " of ", num_groups, " groups");
  TORCH_CHECK_VALUE(top_k > 0 && top_k <= top_groups * size, "cannot choose ", top_k, " of ",
                    top_groups * size, " experts");
  TORCH_CHECK_VALUE(!best_two || size > 1, "a group of one expert has no best two");
  return {top_k,       num_groups, top_groups, is_sigmoid,
          renormalize, best_two,   static_cast<float>(factor)};
}

inline const float* selection_bias(const std::optional<Tensor>& bias, int64_t num_experts) {
  if (!bias.has_value()) return nullptr;
  check_dtype(*bias, at::kFloat, "bias");
  check_shape(*bias, {num_experts}, "bias");
  check_contiguous(*bias, "bias");
  return bias->const_data_ptr<float>();
}

inline std::pair<Tensor, Tensor> route_op(const Tensor& logits, const std::optional<Tensor>& bias,
                                          const RoutingTuple& routing) {
  check_compute_dtype(logits, "logits");
  check_rows(logits, "logits");
  RouteArgs a = {};
  a.logits = logits.const_data_ptr();
  a.num_tokens = logits.size(0);
  a.num_experts = logits.size(1);
  a.stride = logits.stride(0);
  a.bias = selection_bias(bias, a.num_experts);
  a.routing = routing_of(routing, a.num_experts);
  a.num_threads = at::get_num_threads();
  Tensor ids = at::empty({a.num_tokens, a.routing.top_k}, logits.options().dtype(at::kLong));
  Tensor weights = at::empty(ids.sizes(), logits.options().dtype(at::kFloat));
  a.ids = ids.data_ptr<int64_t>();
  a.weights = weights.data_ptr<float>();
  for_dtype(logits.scalar_type(), [&](auto type) { route<decltype(type)>(a); });
  return {ids, weights};
}

inline Tensor add_shared_op(const Tensor& y, const Tensor& shared,
                            const std::optional<Tensor>& gate) {
  check_compute_dtype(y, "y");
  check_dim(y, 2, "y");
  check_contiguous(y, "y");
  check_dtype(shared, y.scalar_type(), "shared");
  check_shape(shared, y.sizes(), "shared");
  check_contiguous(shared, "shared");
  Tensor out = at::empty(y.sizes(), y.options());
  AddSharedArgs a = {};
  a.y = y.const_data_ptr();
  a.shared = shared.const_data_ptr();
  a.out = out.data_ptr();
  a.num_tokens = y.size(0);
  a.size = y.size(1);
  if (gate.has_value()) {
    check_dtype(*gate, y.scalar_type(), "gate");
    check_shape(*gate, {a.num_tokens, 1}, "gate");
    a.gate = gate->const_data_ptr();
    a.gate_stride = gate->stride(0);
  }
  a.num_threads = at::get_num_threads();
  for_dtype(y.scalar_type(), [&](auto type) { add_shared<decltype(type)>(a); });
  return out;
}

}  // namespace infopt
