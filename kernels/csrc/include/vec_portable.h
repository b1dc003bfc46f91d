// Eight floats as the compiler's generic vector: any processor, no intrinsics.
#pragma once

#include <cmath>

#include "bf16.h"

namespace infopt {

struct Vec {
  static constexpr int width = 8;
  float v[width];

  static Vec zero() { return {}; }
  static Vec set(float x) {
    Vec r;
    for (float& lane : r.v) lane = x;
    return r;
  }
  template <typename T>
  static Vec load(const T* p, int n = width) {
    Vec r = {};
    for (int i = 0; i < n; ++i) r.v[i] = to_float(p[i]);
    return r;
  }
  void store(float* p, int n = width) const {
    for (int i = 0; i < n; ++i) p[i] = v[i];
  }
  void store(bf16* p, int n = width) const {
    for (int i = 0; i < n; ++i) p[i] = to_bf16(v[i]);
  }
};

template <typename F>
inline Vec lanewise(F f) {
  Vec r;
  for (int i = 0; i < Vec::width; ++i) r.v[i] = f(i);
  return r;
}

inline Vec operator+(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec operator-(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec operator*(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec operator/(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] / b.v[i]; });
}
// Rounded twice: a processor without a fused instruction would call a slow library function.
inline Vec fma(Vec a, Vec b, Vec c) {
  return lanewise([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// Where either is a NaN the result is b.
inline Vec max(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec abs(Vec a) {
  return lanewise([&](int i) { return std::fabs(a.v[i]); });
}
inline Vec copy_sign(Vec magnitude, Vec sign) {
  return lanewise([&](int i) { return std::copysign(magnitude.v[i], sign.v[i]); });
}
// For |a| < 2^22: adding 1.5 * 2^23 leaves no bits below one. Vectorises, unlike nearbyint.
inline Vec round_even(Vec a) {
  return lanewise([&](int i) { return (a.v[i] + 12582912.0f) - 12582912.0f; });
}
inline float power_of_two(int n) {
  const uint32_t bits = static_cast<uint32_t>(n + 127) << 23;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
// x * 2^n for whole n. In two steps: the exponent field of one factor cannot hold n < -126.
inline Vec scale_by_power(Vec x, Vec n) {
  return lanewise([&](int i) {
    const float bounded = n.v[i] < -252.0f ? -252.0f : (n.v[i] > 252.0f ? 252.0f : n.v[i]);
    const int whole = static_cast<int>(bounded), half = whole >> 1;
    return x.v[i] * power_of_two(half) * power_of_two(whole - half);
  });
}
// Lanes lo <= i < hi of a, the rest from b.
inline Vec select_range(Vec a, Vec b, int lo, int hi) {
  return lanewise([&](int i) { return i >= lo && i < hi ? a.v[i] : b.v[i]; });
}

inline float sum(Vec a) {
  for (int step = Vec::width / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
  }
  return a.v[0];
}

// Lane i of the result is the sum over the lanes of a[i].
inline Vec sum_lanes(const Vec (&a)[Vec::width]) {
  return lanewise([&](int i) { return sum(a[i]); });
}

inline float largest(Vec a) {
  float result = a.v[0];
  for (int i = 1; i < Vec::width; ++i) result = a.v[i] > result ? a.v[i] : result;
  return result;
}

}  // namespace infopt
