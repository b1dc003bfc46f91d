// Residual addition and RMS norm in one pass over a row (arXiv 1910.07467).
#include "fused.h"
#include "parallel.h"
#include "rows.h"

namespace infopt {
namespace {

constexpr int64_t kElementsPerThread = 1 << 15;

// Writes x + residual and returns the sum of squares of what was written (after rounding).
template <typename T>
Vec add_row(const T* x, const T* residual, T* total, int64_t size) {
  Vec squares = Vec::zero();
  for_each_vec(size, [&](int64_t i, int n) {
    const Vec value = rounded<T>(load(x + i, n) + load(residual + i, n));
    store(value, total + i, n);
    squares = fma(value, value, squares);
  });
  return squares;
}

template <typename T>
Vec sum_squares(const T* x, int64_t size) {
  Vec squares = Vec::zero();
  for_each_vec(size, [&](int64_t i, int n) {
    const Vec value = load(x + i, n);
    squares = fma(value, value, squares);
  });
  return squares;
}

template <typename T>
void norm_row(const AddRmsNormArgs& a, int64_t row) {
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  T* normed = static_cast<T*>(a.normed) + row * a.size;
  Vec squares;
  if (a.residual != nullptr) {
    T* total = static_cast<T*>(a.total) + row * a.size;
    squares = add_row(x, static_cast<const T*>(a.residual) + row * a.size, total, a.size);
    x = total;
  } else {
    squares = sum_squares(x, a.size);
  }
  const Vec scale = Vec::set(inverse_rms(squares, a.size, a.eps));
  for_each_vec(a.size, [&](int64_t i, int n) {
    store(load(x + i, n) * scale * load(a.weight + i, n), normed + i, n);
  });
}

}  // namespace

template <typename T>
void add_rms_norm(const AddRmsNormArgs& args) {
  const int threads = threads_for(args.num_rows * args.size, kElementsPerThread, args.num_threads);
  parallel_ranges(args.num_rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) norm_row<T>(args, row);
  });
}

template void add_rms_norm<float>(const AddRmsNormArgs&);
template void add_rms_norm<bf16>(const AddRmsNormArgs&);

}  // namespace infopt
