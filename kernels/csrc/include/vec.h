// One register of floats, for the instruction set this library was compiled for.
//
// Kernels are written once against `Vec`. Products and sums are never contracted by the compiler
// (-ffp-contract=off); where a fused multiply-add is meant, `fma` is written. So the bits of a
// result follow from the source alone, whatever loop the compiler inlined it into.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "vec_avx2.h"
#else
#include "vec_portable.h"
#endif
