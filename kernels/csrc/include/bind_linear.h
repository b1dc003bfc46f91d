// Checks and calls of the matrix products.
#pragma once

#include <ATen/Functions.h>

#include <cmath>

#include "checks.h"
#include "linear.h"
#include "parallel.h"
#include "quantized.h"

namespace infopt {

inline Tensor pack_linear(const Tensor& weight) {
  check_compute_dtype(weight, "weight");
  check_dim(weight, 2, "weight");
  check_contiguous(weight, "weight");
  const bool is_float = weight.scalar_type() == at::kFloat;
  const int64_t out_features = weight.size(0), in_features = weight.size(1);
  TORCH_CHECK_VALUE(out_features > 0 && in_features > 0, "weight is empty");
  const int64_t size = is_float ? packed_size_f32(out_features, in_features)
                                : packed_size_bf16(out_features, in_features);
  Tensor packed = at::empty({size}, weight.options());
  const PackArgs args = {weight.const_data_ptr(), packed.data_ptr(), out_features, in_features,
                         at::get_num_threads()};
  is_float ? pack_f32(args) : pack_bf16(args);
  return packed;
}

// Makes y and fills in what all products have in common.
inline Tensor fill_linear(const Tensor& x, const std::optional<Tensor>& bias, int64_t out_features,
                          int64_t packed_size, LinearArgs& a) {
  if (bias.has_value()) {
    check_dtype(*bias, x.scalar_type(), "bias");
    check_shape(*bias, {out_features}, "bias");
    check_contiguous(*bias, "bias");
    a.bias = bias->const_data_ptr();
  }
  a.num_rows = x.size(0);
  a.in_features = x.size(1);
  a.out_features = out_features;
  Tensor y = at::empty({a.num_rows, out_features}, x.options());
  a.x = x.const_data_ptr();
  a.y = y.data_ptr();
  a.x_stride = x.stride(0);
  a.num_threads = threads_for(a.num_rows * packed_size, 1 << 16, at::get_num_threads());
  return y;
}

// Padding hides a wrong width from the size of the packed weight, so both are checked.
inline void check_width(const Tensor& x, int64_t in_features) {
  check_compute_dtype(x, "x");
  check_rows(x, "x");
  TORCH_CHECK_VALUE(x.size(1) == in_features, "x has width ", x.size(1), ", the weight ",
                    in_features);
}

inline Tensor linear(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias,
                     int64_t out_features, int64_t in_features) {
  check_width(x, in_features);
  check_dtype(packed, x.scalar_type(), "packed");
  const bool is_float = x.scalar_type() == at::kFloat;
  check_shape(packed,
              {is_float ? packed_size_f32(out_features, x.size(1))
                        : packed_size_bf16(out_features, x.size(1))},
              "packed");
  LinearArgs a = {};
  Tensor y = fill_linear(x, bias, out_features, packed.numel(), a);
  a.packed = packed.const_data_ptr();
  const ReleaseGilFor release(a.num_rows * packed.numel());
  is_float ? linear_f32(a) : linear_bf16(a);
  return y;
}

inline void check_code_bits(int64_t code_bits) {
  TORCH_CHECK_VALUE(code_bits == 2 || code_bits == 3 || code_bits == 4 || code_bits == 8,
                    "code_bits must be 2, 3, 4 or 8, got ", code_bits);
}

inline Tensor pack_codes_op(const Tensor& codes, int64_t code_bits) {
  check_dtype(codes, at::kByte, "codes");
  check_dim(codes, 2, "codes");
  check_contiguous(codes, "codes");
  check_code_bits(code_bits);
  const int64_t out_features = codes.size(0), in_features = codes.size(1);
  TORCH_CHECK_VALUE(out_features > 0 && in_features > 0, "codes is empty");
  Tensor packed =
      at::empty({packed_code_bytes(out_features, in_features, code_bits)}, codes.options());
  pack_codes({codes.const_data_ptr<uint8_t>(), packed.data_ptr<uint8_t>(), out_features,
              in_features, static_cast<int>(code_bits), at::get_num_threads()});
  return packed;
}

inline void check_codes(const Tensor& packed, const Tensor& scales, int64_t out_features,
                        int64_t in_features, int64_t group_size, int64_t code_bits,
                        int64_t activation_bits) {
  check_dtype(packed, at::kByte, "packed");
  check_code_bits(code_bits);
  TORCH_CHECK_VALUE(activation_bits == 8 || activation_bits == 16,
                    "activation_bits must be 8 or 16, got ", activation_bits);
  TORCH_CHECK_VALUE(group_size > 0 && group_size % kMinGroup == 0, "group_size must be a multiple ",
                    "of ", kMinGroup, ", got ", group_size);
  check_shape(packed, {packed_code_bytes(out_features, in_features, code_bits)}, "packed");
  check_cpu(scales, "scales");
  check_contiguous(scales, "scales");
  TORCH_CHECK_TYPE(scales.scalar_type() == at::kFloat || scales.scalar_type() == at::kHalf,
                   "scales must be float32 or float16, got ", scales.scalar_type());
  check_shape(scales,
              {num_out_blocks(out_features), num_groups(in_features, group_size), 2, kOutBlock},
              "scales");
}

// The scale of all activations as the kernels take it: 0 where none is given.
inline float checked_scale(std::optional<double> scale, int64_t activation_bits) {
  if (!scale.has_value()) return 0.0f;
  const auto value = static_cast<float>(*scale);
  TORCH_CHECK_VALUE(value > 0 && std::isfinite(value), "activation_scale must be positive, got ",
                    *scale);
  TORCH_CHECK_VALUE(activation_bits == 8, "activation_scale is for 8-bit activations, not ",
                    activation_bits, " bits");
  return value;
}

inline Tensor linear_quantized_op(const Tensor& x, const Tensor& packed, const Tensor& scales,
                                  const std::optional<Tensor>& bias, int64_t out_features,
                                  int64_t in_features, int64_t group_size, int64_t code_bits,
                                  int64_t activation_bits, std::optional<double> activation_scale) {
  check_width(x, in_features);
  check_codes(packed, scales, out_features, in_features, group_size, code_bits, activation_bits);
  QuantizedArgs a = {};
  Tensor y = fill_linear(x, bias, out_features, packed.numel(), a.linear);
  a.linear.packed = packed.const_data_ptr();
  a.scales = scales.const_data_ptr();
  a.group_size = group_size;
  a.code_bits = static_cast<int>(code_bits);
  a.activation_bits = static_cast<int>(activation_bits);
  a.activation_scale = checked_scale(activation_scale, activation_bits);
  a.half_scales = scales.scalar_type() == at::kHalf;
  a.is_float = x.scalar_type() == at::kFloat;
  const ReleaseGilFor release(a.linear.num_rows * packed.numel());
  linear_quantized(a);
  return y;
}

inline Tensor pack_fp8_op(const Tensor& weight) {
  check_dtype(weight, at::kByte, "weight");
  check_dim(weight, 2, "weight");
  check_contiguous(weight, "weight");
  const int64_t out_features = weight.size(0), in_features = weight.size(1);
  TORCH_CHECK_VALUE(out_features > 0 && in_features > 0, "weight is empty");
  Tensor packed = at::empty({packed_size_bf16(out_features, in_features)}, weight.options());
  pack_fp8({weight.const_data_ptr(), packed.data_ptr(), out_features, in_features,
            at::get_num_threads()});
  return packed;
}

inline void check_fp8(const Tensor& packed, const Tensor& scales, int64_t out_features,
                      int64_t in_features, int64_t activation_bits) {
  check_dtype(packed, at::kByte, "packed");
  check_shape(packed, {packed_size_bf16(out_features, in_features)}, "packed");
  check_dtype(scales, at::kFloat, "scales");
  check_shape(scales, {out_features}, "scales");
  check_contiguous(scales, "scales");
  TORCH_CHECK_VALUE(activation_bits == 8 || activation_bits == 16,
                    "activation_bits must be 8 or 16, got ", activation_bits);
}

inline Tensor linear_fp8_op(const Tensor& x, const Tensor& packed, const Tensor& scales,
                            const std::optional<Tensor>& bias, int64_t out_features,
                            int64_t in_features, int64_t activation_bits,
                            std::optional<double> activation_scale) {
  check_width(x, in_features);
  check_fp8(packed, scales, out_features, in_features, activation_bits);
  Fp8Args a = {};
  Tensor y = fill_linear(x, bias, out_features, packed.numel(), a.linear);
  a.linear.packed = packed.const_data_ptr();
  a.linear.out_scales = scales.const_data_ptr<float>();
  a.round_rows = activation_bits == 8;
  a.activation_scale = checked_scale(activation_scale, activation_bits);
  a.is_float = x.scalar_type() == at::kFloat;
  const ReleaseGilFor release(a.linear.num_rows * packed.numel());
  linear_fp8(a);
  return y;
}

}  // namespace infopt
