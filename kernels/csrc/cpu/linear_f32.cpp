// float32 matrix product; f32_rows.h says why it is batch invariant.
#include "f32_rows.h"
#include "parallel.h"

namespace infopt {

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
  parallel_ranges(blocks, args.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t size = kOutBlock * args.in_features;
      const float* weights = static_cast<const float*>(args.packed) + block * size;
      Ahead ahead = f32_ahead(args, weights, size * sizeof(float));
      multiply_f32_block(args, weights, block * kOutBlock, ahead);
    }
  });
}

}  // namespace infopt
