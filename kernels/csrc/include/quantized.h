// Matrix products with quantized weights: w = scale * code + offset, per output and group of
// inputs.
//
// Activations are quantized in the same groups of each row to 8 bits, or to 16 bits as two 8-bit
// planes (x = 256 high + low), which is finer than bfloat16: then only the weights are quantized
// for practical purposes. Where the scale of all activations is given, they are rounded to it and
// saturate. Sums of byte products are exact integers, so these products are batch invariant.
//
// Codes of 8 bits lie in blocks of 32 outputs: [in / 64][2][16][16][4] bytes, two AMX tiles of 16
// outputs with 16 lines of 64 bytes, four inputs side by side. Narrower codes keep that order of
// tiles, and a tile is a plane of fields: of width w it has 2 w lines, and line i of the tile is
// field i / (2 w) of the bytes of line i % (2 w). Of 3 bits the lower two are one plane, the upper
// one another behind it. Scales lie as [block][group][scale, offset][32].
#pragma once

#include <cstdint>
#include <type_traits>

#include "linear.h"

namespace infopt {

constexpr int64_t kCodeTileIn = 64;  // inputs per tile of codes
constexpr int64_t kCodeTileOut = 16;
constexpr int64_t kCodeTile = kCodeTileIn * kCodeTileOut;
constexpr int64_t kHalves = kOutBlock / kCodeTileOut;  // tiles side by side in a block
constexpr int64_t kCodeLine = 64;                      // bytes
constexpr int64_t kMinGroup = 32;                      // groups are multiples of it

struct QuantizedArgs {
  LinearArgs linear;       // `packed` holds the codes
  const void* scales;      // float or half
  int64_t group_size;      // inputs per scale
  int code_bits;           // 2, 3, 4 or 8
  int activation_bits;     // 8 or 16
  float activation_scale;  // of all activations, which are 8 bits then; 0: found per row and group
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

// Calls f with the number of bits as a constant.
template <typename F>
inline void with_code_bits(int code_bits, const F& f) {
  switch (code_bits) {
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    default:
      return f(std::integral_constant<int, 8>{});
  }
}

void pack_codes(const PackCodesArgs& args);
void linear_quantized(const QuantizedArgs& args);

// Many bfloat16 rows: weights are turned into bfloat16 block by block and multiplied as such, which
// saves applying the scales to the sums of every row and group.
bool dequantizing_pays(const QuantizedArgs& args);
void linear_dequantized(const QuantizedArgs& args);

}  // namespace infopt
