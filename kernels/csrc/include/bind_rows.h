// Checks and calls of the row-wise ops: norm and activation.
#pragma once

#include <ATen/Functions.h>

#include <string>
#include <utility>

#include "checks.h"
#include "fused.h"

namespace infopt {

inline std::pair<Tensor, Tensor> add_rms_norm_op(const Tensor& x,
                                                 const std::optional<Tensor>& residual,
                                                 const Tensor& weight, double eps) {
  check_compute_dtype(x, "x");
  check_rows(x, "x");
  check_dtype(weight, at::kFloat, "weight");
  check_shape(weight, {x.size(1)}, "weight");
  check_contiguous(weight, "weight");
  AddRmsNormArgs a = {};
  Tensor normed = at::empty(x.sizes(), x.options());
  Tensor total = x;
  if (residual.has_value()) {
    check_dtype(*residual, x.scalar_type(), "residual");
    check_shape(*residual, x.sizes(), "residual");
    check_contiguous(*residual, "residual");
    total = at::empty(x.sizes(), x.options());
    a.residual = residual->const_data_ptr();
    a.total = total.data_ptr();
  }
  a.x = x.const_data_ptr();
  a.weight = weight.const_data_ptr<float>();
  a.normed = normed.data_ptr();
  a.num_rows = x.size(0);
  a.size = x.size(1);
  a.x_stride = x.stride(0);
  a.eps = static_cast<float>(eps);
  a.num_threads = at::get_num_threads();
  const ReleaseGilFor release(x.numel());
  for_dtype(x.scalar_type(), [&](auto type) { add_rms_norm<decltype(type)>(a); });
  return {normed, total};
}

inline Activation activation_of(const std::string& kind) {
  TORCH_CHECK_VALUE(kind == "silu" || kind == "gelu_tanh", "kind must be silu or gelu_tanh, got ",
                    kind);
  return kind == "silu" ? Activation::kSilu : Activation::kGeluTanh;
}

inline Tensor gated_activation_op(const Tensor& gate_up, const std::string& kind) {
  check_compute_dtype(gate_up, "gate_up");
  check_rows(gate_up, "gate_up");
  TORCH_CHECK_VALUE(gate_up.size(1) % 2 == 0, "gate_up must have an even width, got ",
                    gate_up.size(1));
  GatedActivationArgs a = {};
  a.num_rows = gate_up.size(0);
  a.size = gate_up.size(1) / 2;
  Tensor out = at::empty({a.num_rows, a.size}, gate_up.options());
  a.gate_up = gate_up.const_data_ptr();
  a.out = out.data_ptr();
  a.stride = gate_up.stride(0);
  a.kind = activation_of(kind);
  a.num_threads = at::get_num_threads();
  const ReleaseGilFor release(out.numel() * 4);
  for_dtype(gate_up.scalar_type(), [&](auto type) { gated_activation<decltype(type)>(a); });
  return out;
}

}  // namespace infopt
