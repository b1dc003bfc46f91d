// Quantization of activations on the fly, in the groups of the weights.
#pragma once

#include <cmath>

#include "int_vec.h"
#include "parallel.h"
#include "quantized.h"
#include "rows.h"
#include "scratch.h"

namespace infopt {

// Rows of x as signed bytes, group by group: x = scale * code, code = low, or 256 * high + low.
struct QuantizedRows {
  int8_t* low;    // num_rows x width
  int8_t* high;   // likewise, for 16 bits
  float* scale;   // num_rows x groups
  float* sums;    // num_rows x groups: sum of what the codes of a group stand for
  int64_t width;  // in_features padded to whole tiles, zeros behind
  int64_t groups;
};

// The largest magnitude of a group; NaN where it holds a NaN or an infinity, so that all outputs of
// its row become NaN.
template <typename T>
inline float group_bound(const T* x, int64_t size) {
  Magnitude largest = Magnitude::zero();
  for_each_vec(size, [&](int64_t i, int n) { largest.add(load(x + i, n)); });
  return largest.value();
}

// The factor that stands for a division by a step. The largest value lies half a step from two codes
// when these have 8 bits, so it has to round as the division does, which other programs use.
inline float inverse_of(float step, float bound) {
  float inverse = 1.0f / step;
  const float code = std::nearbyint(bound / step);
  while (std::nearbyint(bound * inverse) < code) inverse = std::nextafter(inverse, INFINITY);
  while (std::nearbyint(bound * inverse) > code) inverse = std::nextafter(inverse, 0.0f);
  return inverse;
}

// x / step, saturated to what a signed byte holds; a NaN stays one.
inline Vec saturated(Vec x, Vec step) {
  const Vec above = max(Vec::set(-128.0f), x / step);
  return Vec::zero() - max(Vec::set(-127.0f), Vec::zero() - above);
}

// Rounds a row to multiples of the step of all activations. A group with a NaN gets a scale that is
// one, so that all outputs of its row become NaN.
template <typename T>
inline void round_row(const T* x, int64_t size, int64_t group_size, float step, int64_t r,
                      const QuantizedRows& out) {
  int8_t* low = out.low + r * out.width;
  std::fill_n(low + size, out.width - size, int8_t{0});
  for (int64_t g = 0, i = 0; g < out.groups; ++g) {
    const int64_t end = std::min(i + group_size, size);
    CodeSum total = CodeSum::zero();
    Vec check = Vec::zero();
    for (; i < end; i += Vec::width) {
      const int n = static_cast<int>(std::min<int64_t>(Vec::width, end - i));
      const Vec code = saturated(load(x + i, n), Vec::set(step));
      total.add(store_codes(code, low + i, nullptr));
      check = check + code;
    }
    out.scale[r * out.groups + g] = std::isnan(sum(check)) ? NAN : step;
    out.sums[r * out.groups + g] = step * total.value();
  }
}

template <typename T>
inline void quantize_row(const T* x, int64_t size, int64_t group_size, bool wide, int64_t r,
                         const QuantizedRows& out) {
  // 8 bits: the step of the compressed-tensors format, whose largest value is half a step too far
  // and saturates.
  const float limit = wide ? 127.0f * 256.0f : 127.5f;
  const Vec last = Vec::set(-127.0f);
  int8_t *low = out.low + r * out.width, *high = wide ? out.high + r * out.width : nullptr;
  std::fill_n(low + size, out.width - size, int8_t{0});
  if (wide) std::fill_n(high + size, out.width - size, int8_t{0});
  for (int64_t g = 0, i = 0; g < out.groups; ++g) {
    const int64_t end = std::min(i + group_size, size);
    const float bound = group_bound(x + i, end - i), step = bound == 0.0f ? 1.0f : bound / limit;
    const Vec inverse = Vec::set(wide ? 1.0f / step : inverse_of(step, bound));
    CodeSum total = CodeSum::zero();
    // Groups are multiples of the register, and a row has room for whole registers.
    for (; i < end; i += Vec::width) {
      const int n = static_cast<int>(std::min<int64_t>(Vec::width, end - i));
      Vec steps = load(x + i, n) * inverse;
      if (!wide) steps = Vec::zero() - max(last, Vec::zero() - steps);
      total.add(store_codes(steps, low + i, wide ? high + i : nullptr));
    }
    out.scale[r * out.groups + g] = step;
    out.sums[r * out.groups + g] = step * total.value();
  }
}

template <typename T>
inline void quantize_row(const QuantizedArgs& args, int64_t r, const QuantizedRows& out) {
  const LinearArgs& a = args.linear;
  const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
  if (args.activation_scale > 0) {
    return round_row(x, a.in_features, args.group_size, args.activation_scale, r, out);
  }
  quantize_row(x, a.in_features, args.group_size, args.activation_bits == 16, r, out);
}

// Quantizes all rows into this thread's scratch memory, on up to num_threads threads.
inline QuantizedRows quantize_rows(const QuantizedArgs& args, int num_threads) {
  static thread_local Scratch scratch;
  const LinearArgs& a = args.linear;
  const bool wide = args.activation_bits == 16;
  QuantizedRows rows;
  rows.width = padded_codes(a.in_features);
  rows.groups = num_groups(a.in_features, args.group_size);
  const int64_t size = a.num_rows * rows.width;
  scratch.reserve((wide ? 2 : 1) * Scratch::size_of<int8_t>(size) +
                  2 * Scratch::size_of<float>(a.num_rows * rows.groups));
  rows.low = scratch.take<int8_t>(size);
  rows.high = wide ? scratch.take<int8_t>(size) : nullptr;
  rows.scale = scratch.take<float>(a.num_rows * rows.groups);
  rows.sums = scratch.take<float>(a.num_rows * rows.groups);
  const int threads = threads_for(size, 1 << 13, num_threads);
  parallel_ranges(a.num_rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      args.is_float ? quantize_row<float>(args, r, rows) : quantize_row<bf16>(args, r, rows);
    }
  });
  return rows;
}

}  // namespace infopt
