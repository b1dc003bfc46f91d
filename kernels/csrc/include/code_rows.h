// Products of codes, up to four rows at a time; see quantized.h for the formats.
#pragma once

#include <algorithm>
#include <cstring>

#include "half.h"
#include "int_vec.h"
#include "linear_rows.h"
#include "quantize_rows.h"

namespace infopt {

constexpr int64_t kCodeTile = kCodeTileIn * kCodeTileOut;
constexpr int kHalves = kOutBlock / kCodeTileOut;  // tiles side by side in a block

// Everything one block of outputs needs.
template <typename S>
struct Block {
  const uint8_t* codes;
  const S* scales;
  int64_t first_out;
};

// Sixteen outputs times four inputs: row `line` (0 to 15) of a tile.
template <int Bits>
inline Codes load_codes(const uint8_t* tile, int line) {
  if constexpr (Bits == 8) return Codes::load(tile + line * 64);
  const Codes both = Codes::load(tile + line % 8 * 64);
  return line < 8 ? both.low_nibbles() : both.high_nibbles();
}

inline int32_t four_inputs(const int8_t* x) {
  int32_t word;
  std::memcpy(&word, x, sizeof(word));
  return word;
}

// Adds what one row and one group give to sixteen outputs:
// scale * (codes of the weights . codes of x) + offset * (sum of the codes of x).
template <int Planes, typename S>
inline void add_group(const int32_t* low, const int32_t* high, const S* scale, float x_sum,
                      float* sums) {
  for (int i = 0; i < kCodeTileOut; i += Vec::width) {
    Vec dot = load_ints(low + i);
    if constexpr (Planes == 2) dot = fma(load_ints(high + i), Vec::set(256.0f), dot);
    const Vec scaled = fma(dot, load_scales(scale + i), Vec::load(sums + i));
    fma(Vec::set(x_sum), load_scales(scale + kOutBlock + i), scaled).store(sums + i);
  }
}

// R rows times one block of outputs.
template <int R, int Planes, int Bits, typename S>
void block_rows(const QuantizedArgs& args, const QuantizedRows& x, const Block<S>& block,
                int64_t first_row, float* sums) {
  const int64_t steps_per_group = args.group_size / kMinGroup;
  const int64_t num_steps = x.width / kMinGroup;
  const float* x_sums[R];
  for (int r = 0; r < R; ++r) x_sums[r] = x.sums + (first_row + r) * x.groups;
  std::fill_n(sums, R * kOutBlock, 0.0f);
  for (int64_t group = 0, step = 0; group < x.groups; ++group) {
    const int64_t end = std::min(step + steps_per_group, num_steps);
    const S* scale = block.scales + group * 2 * kOutBlock;
    const int64_t first_step = step;
    for (int h = 0; h < kHalves; ++h) {
      IntSums acc[R][Planes];
      for (auto& row : acc) {
        for (IntSums& a : row) a = IntSums::zero();
      }
      for (step = first_step; step < end; ++step) {
        const int64_t index = step / 2 * kHalves + h;
        const uint8_t* tile = block.codes + index * kCodeTile * Bits / 8;
        if (step % 2 == 0) prefetch_line(tile + 4096);
        const int8_t* low = x.low + first_row * x.width + step * kMinGroup;
        const int8_t* high = Planes == 2 ? x.high + (low - x.low) : nullptr;
        for (int line = 0; line < 8; ++line) {
          const Codes codes = load_codes<Bits>(tile, static_cast<int>(step % 2) * 8 + line);
          for (int r = 0; r < R; ++r) {
            acc[r][0].add(codes, four_inputs(low + r * x.width + line * 4));
            if constexpr (Planes == 2) {
              acc[r][1].add(codes, four_inputs(high + r * x.width + line * 4));
            }
          }
        }
      }
      for (int r = 0; r < R; ++r) {
        alignas(64) int32_t ints[Planes][kCodeTileOut];
        for (int p = 0; p < Planes; ++p) acc[r][p].store(ints[p]);
        add_group<Planes>(ints[0], ints[Planes - 1], scale + h * kCodeTileOut, x_sums[r][group],
                          sums + r * kOutBlock + h * kCodeTileOut);
      }
    }
  }
}

// Multiplies sums with the steps of their rows and writes them to y.
inline void finish_rows(const QuantizedArgs& args, const QuantizedRows& x, float* sums,
                        int64_t first_row, int64_t rows, int64_t first_out) {
  for (int64_t r = 0; r < rows; ++r) {
    const Vec step = Vec::set(x.scale[first_row + r]);
    for (int i = 0; i < kOutBlock; i += Vec::width) {
      (Vec::load(sums + r * kOutBlock + i) * step).store(sums + r * kOutBlock + i);
    }
  }
  if (args.is_float) {
    write_rows<float>(args.linear, sums, first_row, rows, first_out);
  } else {
    write_rows<bf16>(args.linear, sums, first_row, rows, first_out);
  }
}

template <int Planes, int Bits, typename S>
void vector_block(const QuantizedArgs& args, const QuantizedRows& x, const Block<S>& block) {
  alignas(64) float sums[4 * kOutBlock];
  for (int64_t row = 0; row < args.linear.num_rows; row += 4) {
    const int64_t rows = std::min<int64_t>(4, args.linear.num_rows - row);
    switch (rows) {
      case 1:
        block_rows<1, Planes, Bits>(args, x, block, row, sums);
        break;
      case 2:
        block_rows<2, Planes, Bits>(args, x, block, row, sums);
        break;
      case 3:
        block_rows<3, Planes, Bits>(args, x, block, row, sums);
        break;
      default:
        block_rows<4, Planes, Bits>(args, x, block, row, sums);
    }
    finish_rows(args, x, sums, row, rows, block.first_out);
  }
}

}  // namespace infopt
