// A packed weight of any format and its product with rows, for kernels that make several products.
#pragma once

#include <cstdint>
#include <type_traits>

#include "linear.h"
#include "parallel.h"
#include "quantized.h"

namespace infopt {

enum class WeightFormat { kDense, kCodes, kFp8 };  // dense is in the compute type

// A packed weight.
struct Product {
  WeightFormat format;
  const void* packed;
  const void* bias;
  const void* scales;  // of codes, or float32 per output of float8
  int64_t out_features;
  int64_t in_features;
  int64_t packed_size;  // elements, which is how many steps of work a row takes
  int64_t group_size;   // this and the next are of codes
  int code_bits;
  int activation_bits;     // float8 rounds rows to float8 where they are 8
  float activation_scale;  // 0: found per row and group
  bool half_scales;
};

// y = x W^T + b for contiguous rows.
template <typename T>
inline void multiply(const Product& product, const T* x, T* y, int64_t num_rows, int max_threads) {
  constexpr int64_t kStepsPerThread = 1 << 16;
  LinearArgs a = {};
  a.x = x;
  a.packed = product.packed;
  a.bias = product.bias;
  a.y = y;
  a.num_rows = num_rows;
  a.in_features = product.in_features;
  a.out_features = product.out_features;
  a.x_stride = product.in_features;
  a.num_threads = threads_for(num_rows * product.packed_size, kStepsPerThread, max_threads);
  constexpr bool is_float = std::is_same_v<T, float>;
  if (product.format == WeightFormat::kFp8) {
    a.out_scales = static_cast<const float*>(product.scales);
    linear_fp8({a, product.activation_bits == 8, product.activation_scale, is_float});
  } else if (product.format == WeightFormat::kCodes) {
    linear_quantized({a, product.scales, product.group_size, product.code_bits,
                      product.activation_bits, product.activation_scale, product.half_scales,
                      is_float});
  } else if constexpr (is_float) {
    linear_f32(a);
  } else {
    linear_bf16(a);
  }
}

}  // namespace infopt
