// The end of every matrix product: sums of one output block become rows of y.
#pragma once

#include <algorithm>

#include "linear.h"
#include "rows.h"

namespace infopt {

// Starts to load the cache line at p, which may lie behind the end of an array.
inline void prefetch_line(const void* p) { __builtin_prefetch(p, 0, 3); }

// Adds the bias to rows of kOutBlock float sums and writes them to y in its type.
template <typename T>
inline void write_rows(const LinearArgs& a, const float* sums, int64_t first_row, int64_t rows,
                       int64_t first_out) {
  const int64_t width = std::min(kOutBlock, a.out_features - first_out);
  const T* bias = static_cast<const T*>(a.bias);
  for (int64_t r = 0; r < rows; ++r) {
    T* y = static_cast<T*>(a.y) + (first_row + r) * a.out_features + first_out;
    for_each_vec(width, [&](int64_t i, int n) {
      Vec value = Vec::load(sums + r * kOutBlock + i);
      if (bias != nullptr) value = value + load(bias + first_out + i, n);
      store(value, y + i, n);
    });
  }
}

}  // namespace infopt
