// Elementary functions over Vec: one implementation for every kernel that needs them.
#pragma once

#include "vec.h"

namespace infopt {

// e^x for x <= 88, within 2 units in the last place; exactly 0 at minus infinity, NaN at NaN.
//
// Cody-Waite reduction x = n ln 2 + r with |r| <= ln(2)/2, then a polynomial: r + r^2 q(r) is
// e^r - 1. Taylor coefficients up to r^7 leave an error below 2^-26 there.
struct Reduced {
  Vec n;
  Vec expm1;  // e^r - 1
};

inline Reduced reduce_exp(Vec x) {
  const Vec n = round_even(x * Vec::set(1.44269504088896341f));
  Vec r = fma(n, Vec::set(-0.693359375f), x);
  r = fma(n, Vec::set(2.12194440e-4f), r);
  Vec q = Vec::set(1.0f / 5040);
  q = fma(q, r, Vec::set(1.0f / 720));
  q = fma(q, r, Vec::set(1.0f / 120));
  q = fma(q, r, Vec::set(1.0f / 24));
  q = fma(q, r, Vec::set(1.0f / 6));
  q = fma(q, r, Vec::set(0.5f));
  return {n, fma(r * r, q, r)};
}

inline Vec exp(Vec x) {
  // Below -110 the result is zero in every format; the clamp keeps infinities out of r. A NaN
  // stays: max returns its second argument then.
  const Reduced e = reduce_exp(max(Vec::set(-110.0f), x));
  return scale_by_power(e.expm1 + Vec::set(1.0f), e.n);
}

// tanh(x) = sign(x) (1 - e) / (1 + e), e = e^(-2|x|), through e - 1 so that small x keep their
// digits. Within 3 units in the last place.
inline Vec tanh(Vec x) {
  const Reduced e = reduce_exp(max(Vec::set(-30.0f), abs(x) * Vec::set(-2.0f)));
  const Vec one = Vec::set(1.0f);
  const Vec power = scale_by_power(one, e.n);
  const Vec expm1 = fma(power, e.expm1, power - one);
  return copy_sign(expm1 / (expm1 + Vec::set(2.0f)), x);
}

// 1 / (1 + e^-x)
inline Vec sigmoid(Vec x) {
  const Vec one = Vec::set(1.0f);
  // At -100 e^-x is infinite and the result 0; beyond it the reduction would lose all digits.
  return one / (one + exp(Vec::zero() - max(Vec::set(-100.0f), x)));
}

}  // namespace infopt
