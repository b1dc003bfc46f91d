// Products of codes with AMX tiles; see quantized.h for the formats.
#pragma once

#include "amx.h"
#include "code_rows.h"

#if defined(INFOPT_AMX)

namespace infopt {

// A tile of codes as bytes: narrower codes are unpacked into `buffer`.
template <int Bits>
inline const uint8_t* byte_tile(const uint8_t* tile, uint8_t* buffer) {
  if constexpr (Bits == 8) return tile;
#pragma GCC unroll 16
  for (int line = 0; line < 16; ++line) {
    _mm512_store_si512(buffer + line * kCodeLine, load_codes<Bits>(tile, line).v);
  }
  finish_stores();
  return buffer;
}

// Configures the tiles: 4 and 5 are the two planes of up to 16 rows, or the only plane of up to 32.
// `inputs` is what one product covers.
inline void configure_codes(int64_t rows, int64_t inputs, bool two_planes) {
  const int upper = static_cast<int>(std::min<int64_t>(rows, 16));
  const int lower = two_planes || rows <= 16 ? upper : static_cast<int>(rows - 16);
  TileConfig config;
  for (int tile : {0, 1}) config.set(tile, upper, 64);
  for (int tile : {2, 3}) config.set(tile, lower, 64);
  config.set(4, upper, static_cast<int>(inputs));
  config.set(5, lower, static_cast<int>(inputs));
  for (int tile : {6, 7}) config.set(tile, static_cast<int>(inputs / 4), 64);
  load_config(config);
}

// Adds the products of two tiles of codes with one or two tiles of x (`second` may be null).
inline void multiply_tiles(const int8_t* first, const int8_t* second, int64_t stride,
                           const uint8_t* left, const uint8_t* right) {
  _tile_loadd(6, left, 64);
  _tile_loadd(7, right, 64);
  _tile_loadd(4, first, stride);
  _tile_dpbsud(0, 4, 6);
  _tile_dpbsud(1, 4, 7);
  if (second == nullptr) return;
  _tile_loadd(5, second, stride);
  _tile_dpbsud(2, 5, 6);
  _tile_dpbsud(3, 5, 7);
}

using TileSums = int32_t[kHalves][16][16];  // [half of the block][row][output]

inline void store_tiles(TileSums& first, TileSums& second, bool two) {
  _tile_stored(0, first[0], 64);
  _tile_stored(1, first[1], 64);
  if (!two) return;
  _tile_stored(2, second[0], 64);
  _tile_stored(3, second[1], 64);
}

// Up to 16 rows (two planes) or 32 rows (one plane) times one block of outputs.
template <int Planes, int Bits, typename S>
void code_rows(const QuantizedArgs& args, const QuantizedRows& x, const Block<S>& block,
               int64_t first_row, int64_t rows, int64_t inputs, float* sums) {
  alignas(64) TileSums first, second;
  alignas(64) uint8_t buffers[2][kCodeTile];
  const bool two = Planes == 2 || rows > 16;
  finish_stores();
  const int8_t* low = x.low + first_row * x.width;
  const int8_t* other = Planes == 2 ? x.high + (low - x.low) : two ? low + 16 * x.width : nullptr;
  std::fill_n(sums, rows * kOutBlock, 0.0f);
  for (int64_t group = 0, k = 0; group < x.groups; ++group) {
    const int64_t end = std::min(k + args.group_size, x.width);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (; k < end; k += inputs) {
      const uint8_t* tiles = block.codes + k / kCodeTileIn * kHalves * kCodeTile * Bits / 8;
      const int64_t offset = k % kCodeTileIn * kCodeTileOut;
      const uint8_t* left = byte_tile<Bits>(tiles, buffers[0]) + offset;
      const uint8_t* right = byte_tile<Bits>(tiles + kCodeTile * Bits / 8, buffers[1]) + offset;
      multiply_tiles(low + k, two ? other + k : nullptr, x.width, left, right);
    }
    store_tiles(first, second, two);
    const S* scale = block.scales + group * 2 * kOutBlock;
    for (int64_t r = 0; r < rows; ++r) {
      const GroupOfRow of_row(x, first_row + r, group);
      for (int h = 0; h < kHalves; ++h) {
        const int32_t* ints = Planes == 1 && r >= 16 ? second[h][r - 16] : first[h][r];
        const Vec dot = whole_sum<Planes>(load_ints(ints), load_ints(second[h][r % 16]));
        float* sum = sums + r * kOutBlock + h * kCodeTileOut;
        of_row.add_to(Vec::load(sum), dot, scale + h * kCodeTileOut).store(sum);
      }
    }
  }
}

template <int Planes, int Bits, typename S>
void code_block(const QuantizedArgs& args, const QuantizedRows& x, const Block<S>& block) {
  constexpr int64_t kMaxRows = Planes == 2 ? 16 : 32;
  const int64_t inputs = args.group_size % kCodeTileIn == 0 ? kCodeTileIn : kMinGroup;
  alignas(64) float sums[kMaxRows * kOutBlock];
  for (int64_t row = 0; row < args.linear.num_rows; row += kMaxRows) {
    const int64_t rows = std::min(kMaxRows, args.linear.num_rows - row);
    if (row == 0 || rows < kMaxRows) configure_codes(rows, inputs, Planes == 2);
    code_rows<Planes, Bits>(args, x, block, row, rows, inputs, sums);
    finish_rows(args, sums, row, rows, block.first_out);
  }
}

}  // namespace infopt

#endif
