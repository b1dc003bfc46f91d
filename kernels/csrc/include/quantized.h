// Matrix products with quantized weights: w = scale * code + offset, per output and group of
// inputs.
//
// Activations are quantized in the same groups of each row to 8 bits, or to 16 bits as two 8-bit
// planes (x = 256 high + low), which is finer than bfloat16: then only the weights are quantized
// for practical purposes. Sums of byte products are exact integers, so these products are batch
// invariant.
//
// Packed codes lie in blocks of 32 outputs: [in / 64][2][16][16][4] bytes, two AMX tiles of 16
// outputs, four inputs side by side. Of 4-bit codes the low halves of a tile's 512 bytes are its
// inputs 0 to 31, the high halves 32 to 63. Scales lie as [block][group][scale, offset][32].
#pragma once

#include <cstdint>

#include "linear.h"

namespace infopt {

constexpr int64_t kCodeTileIn = 64;  // inputs per tile of codes
constexpr int64_t kCodeTileOut = 16;
constexpr int64_t kMinGroup = 32;  // groups are multiples of it

struct QuantizedArgs {
  LinearArgs linear;    // `packed` holds the codes
  const void* scales;   // float or half
  int64_t group_size;   // inputs per scale
  int code_bits;        // 4 or 8
  int activation_bits;  // 8 or 16
  bool half_scales;
  bool is_float;  // x and y are float32, else bfloat16
};

struct PackCodesArgs {
  const uint8_t* codes;  // (out_features, in_features), one code per byte
  uint8_t* packed;
  int64_t out_features;
  int64_t in_features;
  int code_bits;
  int num_threads;
};

inline int64_t padded_codes(int64_t in_features) {
  return (in_features + kCodeTileIn - 1) / kCodeTileIn * kCodeTileIn;
}

inline int64_t num_groups(int64_t in_features, int64_t group_size) {
  return (in_features + group_size - 1) / group_size;
}

inline int64_t packed_code_bytes(int64_t out_features, int64_t in_features, int code_bits) {
  return num_out_blocks(out_features) * kOutBlock * padded_codes(in_features) * code_bits / 8;
}

void pack_codes(const PackCodesArgs& args);
void linear_quantized(const QuantizedArgs& args);

// Many bfloat16 rows: weights are turned into bfloat16 block by block and multiplied as such, which
// saves applying the scales to the sums of every row and group.
bool dequantizing_pays(const QuantizedArgs& args);
void linear_dequantized(const QuantizedArgs& args);

}  // namespace infopt
