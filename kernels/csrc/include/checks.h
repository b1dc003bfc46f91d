// Argument checks of the bindings: a wrong tensor raises before any kernel runs.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "bf16.h"

namespace infopt {

using at::Tensor;

inline void check_cpu(const Tensor& t, const char* name) {
  TORCH_CHECK_VALUE(t.device().is_cpu(), name, " must be on the CPU, got ", t.device());
  TORCH_CHECK_VALUE(!t.requires_grad(), name, " requires grad; these kernels have no backward");
}

inline void check_dtype(const Tensor& t, at::ScalarType dtype, const char* name) {
  check_cpu(t, name);
  TORCH_CHECK_TYPE(t.scalar_type() == dtype, name, " must be ", dtype, ", got ", t.scalar_type());
}

inline void check_compute_dtype(const Tensor& t, const char* name) {
  check_cpu(t, name);
  TORCH_CHECK_TYPE(t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16, name,
                   " must be float32 or bfloat16, got ", t.scalar_type());
}

inline void check_shape(const Tensor& t, at::IntArrayRef shape, const char* name) {
  TORCH_CHECK_VALUE(t.sizes() == shape, name, " must have shape ", shape, ", got ", t.sizes());
}

inline void check_dim(const Tensor& t, int64_t dim, const char* name) {
  TORCH_CHECK_VALUE(t.dim() == dim, name, " must have ", dim, " dimensions, got ", t.sizes());
}

// Rows may be strided, elements of a row may not.
inline void check_rows(const Tensor& t, const char* name) {
  check_dim(t, 2, name);
  TORCH_CHECK_VALUE(t.stride(1) == 1 || t.size(1) <= 1, name,
                    " must have contiguous rows, got strides ", t.strides());
}

inline void check_contiguous(const Tensor& t, const char* name) {
  TORCH_CHECK_VALUE(t.is_contiguous(), name, " must be contiguous, got strides ", t.strides());
}

// Runs f<float> or f<bf16>.
template <typename F>
inline void for_dtype(at::ScalarType dtype, const F& f) {
  if (dtype == at::kFloat) {
    f(float{});
  } else {
    f(bf16{});
  }
}

// Releases the interpreter lock for work that is worth it: taking it back can wait for another
// thread's time slice, which is longer than a small op.
class ReleaseGilFor {
 public:
  explicit ReleaseGilFor(int64_t num_steps) {
    if (num_steps >= kWorthReleasing) release_.emplace();
  }

 private:
  static constexpr int64_t kWorthReleasing = 1 << 20;
  std::optional<pybind11::gil_scoped_release> release_;
};

}  // namespace infopt
