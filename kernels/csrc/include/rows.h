// Loops over one row of any length, register by register.
#pragma once

#include <cmath>
#include <cstdint>

#include "vec.h"

namespace infopt {

// Calls f(i, n) for each register of a row: element i, n elements (less than the width at the end).
template <typename F>
inline void for_each_vec(int64_t size, const F& f) {
  int64_t i = 0;
  for (; i + Vec::width <= size; i += Vec::width) f(i, Vec::width);
  if (i < size) f(i, static_cast<int>(size - i));
}

template <typename T>
inline Vec load(const T* p, int n) {
  return n == Vec::width ? Vec::load(p) : Vec::load(p, n);
}

template <typename T>
inline void store(Vec v, T* p, int n) {
  n == Vec::width ? v.store(p) : v.store(p, n);
}

// Rounds to the type that the row is kept in.
template <typename T>
inline Vec rounded(Vec v);
template <>
inline Vec rounded<float>(Vec v) {
  return v;
}
template <>
inline Vec rounded<bf16>(Vec v) {
  alignas(64) bf16 buffer[Vec::width];
  v.store(buffer);
  return Vec::load(buffer);
}

// 1 / sqrt(mean(x^2) + eps) from the sum of squares.
inline float inverse_rms(Vec squares, int64_t size, float eps) {
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps);
}

}  // namespace infopt
