// float32 matrix product that is batch invariant: an output is one chain of multiply-adds per
// kChain inputs, and the chains are added in order. Nothing else enters it, so its bits depend on
// its row and its weights alone, whatever the number of rows or threads.
#include <algorithm>

#include "linear_rows.h"
#include "parallel.h"

namespace infopt {
namespace {

constexpr int64_t kChain = 256;                   // shorter chains round less
constexpr int64_t kStep = 8;                      // inputs between two prefetches; divides kChain
constexpr int kRows = Vec::width == 16 ? 12 : 4;  // their sums fill the registers

// R rows times one block of outputs.
template <int R>
[[gnu::noinline]] void block_rows(const LinearArgs& a, const float* weights, int64_t first_row,
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
      for (const int64_t stop = std::min(k + kStep, end); k < stop; ++k) {
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

}  // namespace

int64_t packed_size_f32(int64_t out_features, int64_t in_features) {
  return num_out_blocks(out_features) * kOutBlock * in_features;
}

void pack_f32(const PackArgs& args) {
  const float* weight = static_cast<const float*>(args.weight);
  float* packed = static_cast<float*>(args.packed);
  parallel_for(num_out_blocks(args.out_features), args.num_threads, [&](int64_t i) {
    float* block = packed + i * kOutBlock * args.in_features;
    std::fill_n(block, kOutBlock * args.in_features, 0.0f);
    const int64_t first = i * kOutBlock, end = std::min(first + kOutBlock, args.out_features);
    for (int64_t o = first; o < end; ++o) {
      for (int64_t k = 0; k < args.in_features; ++k) {
        block[k * kOutBlock + o - first] = weight[o * args.in_features + k];
      }
    }
  });
}

void linear_f32(const LinearArgs& args) {
  if (args.num_rows == 0) return;
  const int64_t blocks = num_out_blocks(args.out_features);
  const int64_t step = rows_per_pass(args.num_rows, kRows);
  parallel_ranges(blocks, args.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t size = kOutBlock * args.in_features;
      const float* weights = static_cast<const float*>(args.packed) + block * size;
      Ahead ahead(weights, size * sizeof(float), kStep * kOutBlock * sizeof(float),
                  num_passes(args.num_rows, kRows));
      for (int64_t row = 0; row < args.num_rows; row += step) {
        with_rows<kRows>(std::min(step, args.num_rows - row), [&](auto R) {
          block_rows<R>(args, weights, row, block * kOutBlock, ahead);
        });
      }
    }
  });
}

}  // namespace infopt
