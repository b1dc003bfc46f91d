// Quantization of activations, row by row, on the fly.
#pragma once

#include <cmath>

#include "int_vec.h"
#include "parallel.h"
#include "quantized.h"
#include "rows.h"
#include "scratch.h"

namespace infopt {

// Rows of x as signed bytes: x = scale * code, code = low, or 256 * high + low.
struct QuantizedRows {
  int8_t* low;    // num_rows x width
  int8_t* high;   // likewise, for 16 bits
  float* scale;   // num_rows
  float* sums;    // num_rows x groups: sum of the codes of each group
  int64_t width;  // in_features padded to whole tiles, zeros behind
  int64_t groups;
};

// The step of a row's codes; NaN where the row holds a NaN or an infinity, so that its outputs do.
template <typename T>
inline float row_step(const T* x, int64_t size, float largest_code) {
  Vec highest = Vec::zero(), poison = Vec::zero();
  for_each_vec(size, [&](int64_t i, int n) {
    const Vec value = load(x + i, n);
    highest = max(abs(value), highest);
    poison = fma(value, Vec::zero(), poison);  // 0 * inf and 0 * NaN are NaN
  });
  const float bound = largest(highest) + sum(poison);
  return bound == 0.0f ? 1.0f : bound / largest_code;
}

template <typename T>
inline void quantize_row(const T* x, int64_t size, int64_t group_size, bool wide, int64_t r,
                         const QuantizedRows& out) {
  const float limit = wide ? 127.0f * 256.0f : 127.0f;
  const float step = row_step(x, size, limit);
  const Vec inverse = Vec::set(1.0f / step);
  int8_t *low = out.low + r * out.width, *high = wide ? out.high + r * out.width : nullptr;
  float* sums = out.sums + r * out.groups;
  std::fill_n(sums, out.groups, 0.0f);
  std::fill_n(low, out.width, int8_t{0});
  if (wide) std::fill_n(high, out.width, int8_t{0});
  for (int64_t i = 0; i < size; i += Vec::width) {
    // Groups are multiples of the register, and a row has room for whole registers.
    const int n = static_cast<int>(std::min<int64_t>(Vec::width, size - i));
    const int32_t total = store_codes(load(x + i, n) * inverse, low + i, wide ? high + i : nullptr);
    sums[i / group_size] += static_cast<float>(total);
  }
  out.scale[r] = step;
}

// Quantizes all rows into this thread's scratch memory.
inline QuantizedRows quantize_rows(const QuantizedArgs& args) {
  static thread_local Scratch scratch;
  const LinearArgs& a = args.linear;
  const bool wide = args.activation_bits == 16;
  QuantizedRows rows;
  rows.width = padded_codes(a.in_features);
  rows.groups = num_groups(a.in_features, args.group_size);
  const int64_t size = a.num_rows * rows.width;
  scratch.reserve((wide ? 2 : 1) * Scratch::size_of<int8_t>(size) +
                  Scratch::size_of<float>(a.num_rows) +
                  Scratch::size_of<float>(a.num_rows * rows.groups));
  rows.low = scratch.take<int8_t>(size);
  rows.high = wide ? scratch.take<int8_t>(size) : nullptr;
  rows.scale = scratch.take<float>(a.num_rows);
  rows.sums = scratch.take<float>(a.num_rows * rows.groups);
  const int threads = threads_for(size, 1 << 13, a.num_threads);
  parallel_ranges(a.num_rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (args.is_float) {
        const float* x = static_cast<const float*>(a.x) + r * a.x_stride;
        quantize_row(x, a.in_features, args.group_size, wide, r, rows);
      } else {
        const bf16* x = static_cast<const bf16*>(a.x) + r * a.x_stride;
        quantize_row(x, a.in_features, args.group_size, wide, r, rows);
      }
    }
  });
  return rows;
}

}  // namespace infopt
