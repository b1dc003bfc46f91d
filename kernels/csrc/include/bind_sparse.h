// A mixture of experts as a Python object that layers of a stack run: router, experts and shared
// expert, checked once when it is built.
#pragma once

#include <vector>

#include "bind_experts.h"
#include "bind_router.h"
#include "stack.h"

namespace infopt {

class SparseMlp {
 public:
  // Shared: gate_up and down, or nothing.
  SparseMlp(const Experts& experts, const PackedProduct& router, const std::optional<Tensor>& bias,
            const RoutingTuple& routing, const std::vector<PackedProduct>& shared, bool is_gated)
      : experts_(experts), router_(router), shared_(shared), bias_(bias) {
    const int64_t num_experts = static_cast<int64_t>(experts_.all().size());
    const int64_t hidden = experts_.hidden_size();
    router_.check(dtype(), hidden, "router");
    TORCH_CHECK_VALUE(router_.value.out_features == num_experts + is_gated, "router returns ",
                      router_.value.out_features, " values for ", num_experts, " experts");
    TORCH_CHECK_VALUE(shared.empty() || shared.size() == 2,
                      "a shared expert has a gate_up and a down product");
    TORCH_CHECK_VALUE(!is_gated || !shared.empty(), "there is no shared expert to gate");
    value_.router = router_.value;
    value_.bias = selection_bias(bias_, num_experts);
    value_.routing = routing_of(routing, num_experts);
    value_.experts = &experts_.all();
    value_.is_gated = is_gated;
    if (shared.empty()) return;
    const int64_t inner = shared_[1].value.in_features;
    shared_[0].check(dtype(), hidden, "shared gate_up");
    shared_[1].check(dtype(), inner, "shared down");
    TORCH_CHECK_VALUE(
        shared_[0].value.out_features == 2 * inner && shared_[1].value.out_features == hidden,
        "the shared gate_up must return ", 2 * inner, " values and down ", hidden);
    value_.shared_gate_up = shared_[0].value;
    value_.shared_down = shared_[1].value;
  }
  SparseMlp(const SparseMlp&) = delete;  // layers point into it
  SparseMlp& operator=(const SparseMlp&) = delete;

  const SparseLayer& value() const { return value_; }
  at::ScalarType dtype() const { return experts_.dtype(); }
  int64_t hidden_size() const { return experts_.hidden_size(); }

 private:
  Experts experts_;
  PackedProduct router_;
  std::vector<PackedProduct> shared_;
  std::optional<Tensor> bias_;
  SparseLayer value_ = {};
};

}  // namespace infopt
