// The experts of a layer as a Python object: checked once when it is built, and each batch's
// routing before any expert runs.
#pragma once

#include <ATen/Functions.h>

#include <string>
#include <vector>

#include "bind_product.h"
#include "bind_rows.h"
#include "experts.h"

namespace infopt {

class Experts {
 public:
  Experts(const std::vector<PackedProduct>& gate_up, const std::vector<PackedProduct>& down,
          const std::string& activation, const Tensor& like)
      : gate_up_(gate_up),
        down_(down),
        activation_(activation_of(activation)),
        dtype_(like.scalar_type()) {
    check_compute_dtype(like, "like");
    TORCH_CHECK_VALUE(!gate_up.empty() && gate_up.size() == down.size(),
                      "each expert has a gate_up and a down product, got ", gate_up.size(), " and ",
                      down.size());
    hidden_ = gate_up[0].value.in_features;
    const int64_t inner = down[0].value.in_features;
    for (size_t i = 0; i < gate_up.size(); ++i) {
      gate_up[i].check(dtype_, hidden_, "gate_up");
      down[i].check(dtype_, inner, "down");
      TORCH_CHECK_VALUE(
          gate_up[i].value.out_features == 2 * inner && down[i].value.out_features == hidden_,
          "gate_up must return ", 2 * inner, " values and down ", hidden_, ", got ",
          gate_up[i].value.out_features, " and ", down[i].value.out_features);
      experts_.push_back({gate_up[i].value, down[i].value});
    }
  }

  Tensor forward(const Tensor& x, const Tensor& ids, const Tensor& weights) const {
    check_dtype(x, dtype_, "x");
    check_rows(x, "x");
    check_shape(x, {x.size(0), hidden_}, "x");
    check_dtype(ids, at::kLong, "ids");
    check_dim(ids, 2, "ids");
    check_shape(ids, {x.size(0), ids.size(1)}, "ids");
    check_contiguous(ids, "ids");
    TORCH_CHECK_VALUE(ids.size(1) > 0, "a token needs at least one choice");
    check_dtype(weights, at::kFloat, "weights");
    check_shape(weights, ids.sizes(), "weights");
    check_contiguous(weights, "weights");
    check_ids(ids);
    Tensor y = at::empty(x.sizes(), x.options());
    const ExpertsArgs args = {x.const_data_ptr(),
                              ids.const_data_ptr<int64_t>(),
                              weights.const_data_ptr<float>(),
                              y.data_ptr(),
                              x.size(0),
                              ids.size(1),
                              x.stride(0),
                              activation_,
                              at::get_num_threads()};
    const ReleaseGilFor release(ids.numel() * experts_[0].gate_up.packed_size);
    for_dtype(dtype_, [&](auto type) { run_experts<decltype(type)>(experts_, args); });
    return y;
  }

  const std::vector<Expert>& all() const { return experts_; }
  at::ScalarType dtype() const { return dtype_; }
  int64_t hidden_size() const { return hidden_; }

 private:
  std::vector<PackedProduct> gate_up_, down_;  // keep alive what the experts point to
  std::vector<Expert> experts_;
  Activation activation_;
  at::ScalarType dtype_;
  int64_t hidden_;

  void check_ids(const Tensor& ids) const {
    const auto* id = ids.const_data_ptr<int64_t>();
    const auto count = static_cast<int64_t>(experts_.size());
    for (int64_t i = 0; i < ids.numel(); ++i) {
      TORCH_CHECK_INDEX(id[i] >= -1 && id[i] < count, "no expert ", id[i], ", there are ", count);
    }
  }
};

}  // namespace infopt
