// float32 products that are batch invariant: an output is one chain of multiply-adds per kChain
// inputs, and the chains are added in order. Nothing else enters it, so its bits depend on its row
// and its weights alone, whatever the number of rows or threads.
#pragma once

#include <algorithm>

#include "linear_rows.h"

namespace infopt {

constexpr int64_t kChain = 256;  // shorter chains round less
constexpr int64_t kF32Step = 8;  // inputs between two prefetches; divides kChain
constexpr int kF32Rows = Vec::width == 16 ? 12 : 4;  // their sums fill the registers

// R rows times one block of outputs.
template <int R>
[[gnu::noinline]] void f32_rows(const LinearArgs& a, const float* weights, int64_t first_row,
                                int64_t first_out, Ahead& ahead) {
  constexpr int N = kOutBlock / Vec::width;
  const float* x = static_cast<const float*>(a.x) + first_row * a.x_stride;
  alignas(64) float sums[R * kOutBlock] = {};
  for (int64_t begin = 0; begin < a.in_features; begin += kChain) {
    const int64_t end = std::min(begin + kChain, a.in_features);
    Vec acc[R][N];
    INFOPT_UNROLL
    for (int r = 0; r < R; ++r) {
      INFOPT_UNROLL
      for (int n = 0; n < N; ++n) acc[r][n] = Vec::zero();
    }
    for (int64_t k = begin; k < end;) {
      ahead.next();
      for (const int64_t stop = std::min(k + kF32Step, end); k < stop; ++k) {
        Vec w[N];
        INFOPT_UNROLL
        for (int n = 0; n < N; ++n) w[n] = Vec::load(weights + k * kOutBlock + n * Vec::width);
        INFOPT_UNROLL
        for (int r = 0; r < R; ++r) {
          const Vec value = Vec::set(x[r * a.x_stride + k]);
          INFOPT_UNROLL
          for (int n = 0; n < N; ++n) acc[r][n] = fma(value, w[n], acc[r][n]);
        }
      }
    }
    INFOPT_UNROLL
    for (int r = 0; r < R; ++r) {
      INFOPT_UNROLL
      for (int n = 0; n < N; ++n) {
        float* sum = sums + r * kOutBlock + n * Vec::width;
        (Vec::load(sum) + acc[r][n]).store(sum);
      }
    }
  }
  write_rows<float>(a, sums, first_row, R, first_out);
}

// All rows times one block of outputs, which lies as [in][32].
inline void multiply_f32_block(const LinearArgs& a, const float* weights, int64_t first_out,
                               Ahead& ahead) {
  const int64_t step = rows_per_pass(a.num_rows, kF32Rows);
  for (int64_t row = 0; row < a.num_rows; row += step) {
    with_rows<kF32Rows>(std::min(step, a.num_rows - row),
                        [&](auto R) { f32_rows<R>(a, weights, row, first_out, ahead); });
  }
}

// Prefetches the block that follows one of `size` bytes while all rows pass over it.
inline Ahead f32_ahead(const LinearArgs& a, const void* block, int64_t size) {
  return Ahead(block, size, size * kF32Step / std::max(kF32Step, a.in_features),
               num_passes(a.num_rows, kF32Rows));
}

}  // namespace infopt
