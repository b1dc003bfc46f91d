// bfloat16 products with vectors: the AVX-512 dot product, or a widening fallback.
#pragma once

#include "bf16_tiles.h"
#include "fp8.h"

namespace infopt {

constexpr int kBf16Rows = Vec::width == 16 ? 12 : 4;  // their sums fill the registers
#if defined(__AVX512BF16__)
constexpr int kUnrolledPairs = 16;
#else
constexpr int kUnrolledPairs = 1;
#endif

// Weights of sixteen (or eight) outputs for one pair of inputs.
struct WeightPair {
#if defined(__AVX512BF16__)
  __m512bh both;

  static WeightPair load(const bf16* p) { return {(__m512bh)_mm512_loadu_si512(p)}; }
  static WeightPair load(const fp8* p) { return {(__m512bh)bf16_pairs(p)}; }
  // Adds the products with two inputs to sums.
  Vec add(Vec sums, const bf16* x) const {
    int32_t bits;
    std::memcpy(&bits, x, sizeof(bits));
    return {_mm512_dpbf16_ps(sums.v, (__m512bh)_mm512_set1_epi32(bits), both)};
  }
#else
  Vec even, odd;

  // A pair lies in the halves of one 32-bit word.
  static WeightPair load(const bf16* p) {
#if defined(__AVX512F__)
    const __m512i v = _mm512_loadu_si512(p);
    const __m512i odd = _mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(v, 16))}, {_mm512_castsi512_ps(odd)}};
#elif defined(__AVX2__)
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i odd = _mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(v, 16))}, {_mm256_castsi256_ps(odd)}};
#else
    alignas(64) float even[Vec::width], odd[Vec::width];
    for (int i = 0; i < Vec::width; ++i) {
      even[i] = to_float(p[2 * i]);
      odd[i] = to_float(p[2 * i + 1]);
    }
    return {Vec::load(even), Vec::load(odd)};
#endif
  }
  static WeightPair load(const fp8* p) {
    const Fp8Pair pair = Fp8Pair::load(p);
    return {pair.even, pair.odd};
  }
  Vec add(Vec sums, const bf16* x) const {
    return fma(Vec::set(to_float(x[1])), odd, fma(Vec::set(to_float(x[0])), even, sums));
  }
#endif
};

// R rows times one block of outputs.
template <int R, typename W>
inline void bf16_rows(const LinearArgs& a, const bf16* x, int64_t stride, const W* weights,
                      Ahead& ahead, float* sums) {
  constexpr int N = kOutBlock / Vec::width;
  Vec acc[R][N];
  INFOPT_UNROLL
  for (int r = 0; r < R; ++r) {
    INFOPT_UNROLL
    for (int n = 0; n < N; ++n) acc[r][n] = Vec::zero();
  }
  for (int64_t k = 0; k < padded(a.in_features); k += kTileIn, x += kTileIn) {
    ahead.next();
#pragma GCC unroll kUnrolledPairs
    for (int line = 0; line < kTileOut; ++line, weights += kTileIn) {
      WeightPair pairs[N];
      INFOPT_UNROLL
      for (int n = 0; n < N; ++n) {
        const int out = n * Vec::width;
        pairs[n] = WeightPair::load(weights + out / kTileOut * kTile + out % kTileOut * 2);
      }
      INFOPT_UNROLL
      for (int r = 0; r < R; ++r) {
        INFOPT_UNROLL
        for (int n = 0; n < N; ++n) acc[r][n] = pairs[n].add(acc[r][n], x + r * stride + line * 2);
      }
    }
    weights += kTile;
  }
  INFOPT_UNROLL
  for (int r = 0; r < R; ++r) {
    INFOPT_UNROLL
    for (int n = 0; n < N; ++n) acc[r][n].store(sums + r * kOutBlock + n * Vec::width);
  }
}

// Prefetches the block that follows one of `size` bytes while all rows pass over it.
inline Ahead bf16_ahead(const LinearArgs& a, const void* block, int64_t size) {
  return Ahead(block, size, size / (padded(a.in_features) / kTileIn),
               num_passes(a.num_rows, kBf16Rows));
}

// All rows times one block of outputs.
template <typename W>
inline void multiply_rows_of_block(const LinearArgs& a, const bf16* x, int64_t stride,
                                   const W* weights, int64_t first_out, Ahead& ahead) {
  alignas(64) float sums[kBf16Rows * kOutBlock];
  const int64_t step = rows_per_pass(a.num_rows, kBf16Rows);
  for (int64_t row = 0; row < a.num_rows; row += step) {
    const int64_t rows = std::min(step, a.num_rows - row);
    with_rows<kBf16Rows>(
        rows, [&](auto R) { bf16_rows<R>(a, x + row * stride, stride, weights, ahead, sums); });
    write_rows<bf16>(a, sums, row, rows, first_out);
  }
}

}  // namespace infopt
