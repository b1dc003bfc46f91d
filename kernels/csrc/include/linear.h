// Matrix products y = x W^T + b with weights packed once: arguments and entry points.
//
// Output features are packed in blocks of 32, padded with zeros. Within a block the weights lie in
// the order in which they are read:
//   float32   [in][32]
//   bfloat16  [in / 32][2][16][16][2], in padded to a multiple of 32: two AMX tiles of 16 outputs,
//             each row of a tile being one pair of inputs; the AVX-512 dot product reads them too
#pragma once

#include <cstdint>

#include "bf16.h"

namespace infopt {

constexpr int64_t kOutBlock = 32;

struct LinearArgs {
  const void* x;       // (num_rows, in_features), rows strided
  const void* packed;  // blocks of kOutBlock output features
  const void* bias;    // (out_features,) of the compute type, or null
  void* y;             // (num_rows, out_features), contiguous
  int64_t num_rows;
  int64_t in_features;
  int64_t out_features;
  int64_t x_stride;
  int num_threads;
  const float* out_scales;  // (out_features,), factors of the sums; null: none
  const float* row_scales;  // (num_rows,), likewise
};

struct PackArgs {
  const void* weight;  // (out_features, in_features), contiguous
  void* packed;
  int64_t out_features;
  int64_t in_features;
  int num_threads;
};

// Elements of the packed weight.
int64_t packed_size_f32(int64_t out_features, int64_t in_features);
int64_t packed_size_bf16(int64_t out_features, int64_t in_features);

void pack_f32(const PackArgs& args);
void pack_bf16(const PackArgs& args);
void pack_fp8(const PackArgs& args);  // bytes in the order of pack_bf16

void linear_f32(const LinearArgs& args);
void linear_bf16(const LinearArgs& args);

// Weights of float8 (e4m3) in the layout of bfloat16, times args.out_scales.
struct Fp8Args {
  LinearArgs linear;
  bool round_rows;         // rows of x are rounded to float8 as well
  float activation_scale;  // of all rows; 0: found per row
  bool is_float;           // x and y are float32, else bfloat16
};
void linear_fp8(const Fp8Args& args);

inline int64_t num_out_blocks(int64_t out_features) {
  return (out_features + kOutBlock - 1) / kOutBlock;
}

// True when this library was compiled for AMX and the system lets this process use it.
bool amx_available();

}  // namespace infopt
