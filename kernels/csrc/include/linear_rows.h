// The end of every matrix product: sums of one output block become rows of y.
#pragma once

#include <algorithm>
#include <type_traits>

#include "linear.h"
#include "rows.h"

// For short loops over arrays that have to become registers: the compiler decides that before it
// would unroll them by itself.
#define INFOPT_UNROLL _Pragma("GCC unroll 16")

namespace infopt {

// Starts to load the cache line at p, which may lie behind the end of an array.
inline void prefetch_line(const void* p) { __builtin_prefetch(p, 0, 3); }

// Prefetches weights while a block of them is multiplied; the hardware stops at the end of each
// page. One pass over the block loads what comes soon. Several passes share the next block in equal
// parts, so that memory does not wait for arithmetic.
class Ahead {
 public:
  // A block of `size` bytes; next() is called every `step` bytes of each pass.
  Ahead(const void* block, int64_t size, int64_t step, int64_t passes)
      : line_(static_cast<const char*>(block) + (passes == 1 ? std::min(size, kSoon) : size)),
        step_((step + 64 * passes - 1) / (64 * passes) * 64) {}

  void next() {
    for (int64_t i = 0; i < step_; i += 64) prefetch_line(line_ + i);
    line_ += step_;
  }

 private:
  static constexpr int64_t kSoon = 8192;  // bytes
  const char* line_;
  int64_t step_;
};

// Calls f with 1 <= rows <= Max as a constant, so that sums of that many rows stay in registers.
template <int Max, typename F>
inline void with_rows(int64_t rows, const F& f) {
  if constexpr (Max > 1) {
    if (rows < Max) return with_rows<Max - 1>(rows, f);
  }
  f(std::integral_constant<int, Max>{});
}

inline int64_t num_passes(int64_t num_rows, int64_t most) { return (num_rows + most - 1) / most; }

// Rows per pass where a pass takes up to `most`: passes are equal, 13 rows are 7 + 6, not 12 + 1.
inline int64_t rows_per_pass(int64_t num_rows, int64_t most) {
  const int64_t passes = num_passes(num_rows, most);
  return (num_rows + passes - 1) / passes;
}

// Scales rows of kOutBlock float sums, adds the bias and writes them to y in its type.
template <typename T>
inline void write_rows(const LinearArgs& a, const float* sums, int64_t first_row, int64_t rows,
                       int64_t first_out) {
  const int64_t width = std::min(kOutBlock, a.out_features - first_out);
  const T* bias = static_cast<const T*>(a.bias);
  for (int64_t r = 0; r < rows; ++r) {
    T* y = static_cast<T*>(a.y) + (first_row + r) * a.out_features + first_out;
    for_each_vec(width, [&](int64_t i, int n) {
      Vec value = Vec::load(sums + r * kOutBlock + i);
      if (a.row_scales != nullptr) value = value * Vec::set(a.row_scales[first_row + r]);
      if (a.out_scales != nullptr) value = value * load(a.out_scales + first_out + i, n);
      if (bias != nullptr) value = value + load(bias + first_out + i, n);
      store(value, y + i, n);
    });
  }
}

}  // namespace infopt
