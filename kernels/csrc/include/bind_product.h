// A packed weight as a Python object, which kernels of several products are built from.
#pragma once

#include <optional>

#include "bind_linear.h"
#include "product.h"

namespace infopt {

// A packed weight with the tensors that hold it.
class PackedProduct {
 public:
  static PackedProduct dense(const Tensor& packed, const std::optional<Tensor>& bias,
                             int64_t out_features, int64_t in_features) {
    check_compute_dtype(packed, "packed");
    const bool is_float = packed.scalar_type() == at::kFloat;
    check_shape(packed,
                {is_float ? packed_size_f32(out_features, in_features)
                          : packed_size_bf16(out_features, in_features)},
                "packed");
    PackedProduct product(packed, bias, out_features, in_features);
    product.dtype_ = packed.scalar_type();
    return product;
  }

  static PackedProduct codes(const Tensor& packed, const Tensor& scales,
                             const std::optional<Tensor>& bias, int64_t out_features,
                             int64_t in_features, int64_t group_size, int64_t code_bits,
                             int64_t activation_bits, std::optional<double> activation_scale) {
    check_codes(packed, scales, out_features, in_features, group_size, code_bits, activation_bits);
    PackedProduct product(packed, bias, out_features, in_features);
    product.scales_ = scales;
    product.value.format = WeightFormat::kCodes;
    product.value.scales = scales.const_data_ptr();
    product.value.group_size = group_size;
    product.value.code_bits = static_cast<int>(code_bits);
    product.value.activation_bits = static_cast<int>(activation_bits);
    product.value.activation_scale = checked_scale(activation_scale, activation_bits);
    product.value.half_scales = scales.scalar_type() == at::kHalf;
    return product;
  }

  static PackedProduct fp8(const Tensor& packed, const Tensor& scales,
                           const std::optional<Tensor>& bias, int64_t out_features,
                           int64_t in_features, int64_t activation_bits,
                           std::optional<double> activation_scale) {
    check_fp8(packed, scales, out_features, in_features, activation_bits);
    PackedProduct product(packed, bias, out_features, in_features);
    product.scales_ = scales;
    product.value.format = WeightFormat::kFp8;
    product.value.scales = scales.const_data_ptr();
    product.value.activation_bits = static_cast<int>(activation_bits);
    product.value.activation_scale = checked_scale(activation_scale, activation_bits);
    return product;
  }

  // Refuses a product that does not take rows of this type and width.
  void check(at::ScalarType dtype, int64_t in_features, const char* name) const {
    TORCH_CHECK_VALUE(value.in_features == in_features, name, " takes ", value.in_features,
                      " inputs, got ", in_features);
    TORCH_CHECK_TYPE(!dtype_.has_value() || *dtype_ == dtype, name, " holds ", *dtype_, ", not ",
                     dtype);
    if (bias_.has_value()) check_dtype(*bias_, dtype, name);
  }

  Product value = {};

 private:
  Tensor packed_;
  std::optional<Tensor> scales_, bias_;
  std::optional<at::ScalarType> dtype_;  // of a dense product

  PackedProduct(const Tensor& packed, const std::optional<Tensor>& bias, int64_t out_features,
                int64_t in_features)
      : packed_(packed), bias_(bias) {
    if (bias.has_value()) {
      check_shape(*bias, {out_features}, "bias");
      check_contiguous(*bias, "bias");
      value.bias = bias->const_data_ptr();
    }
    value.packed = packed.const_data_ptr();
    value.out_features = out_features;
    value.in_features = in_features;
    value.packed_size = packed.numel();
  }
};

}  // namespace infopt
