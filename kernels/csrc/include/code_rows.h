// Products of codes, up to four rows at a time; see quantized.h for the formats.
#pragma once

#include <algorithm>
#include <cstring>

#include "half.h"
#include "int_vec.h"
#include "linear_rows.h"
#include "quantize_rows.h"

namespace infopt {

// Everything one block of outputs needs.
template <typename S>
struct Block {
  const uint8_t* codes;
  const S* scales;
  int64_t first_out;
};

// The fields of one line of a tile, moved to bit `to` of their bytes.
template <int Width>
inline Codes load_fields(const uint8_t* plane, int line, int to = 0) {
  constexpr int kLines = 2 * Width;
  const Codes bytes = Codes::load(plane + line % kLines * kCodeLine);
  return bytes.fields(line / kLines * Width - to, ((1 << Width) - 1) << to);
}

// Sixteen outputs times four inputs: line 0 to 15 of a tile.
template <int Bits>
inline Codes load_codes(const uint8_t* tile, int line) {
  if constexpr (Bits == 8) return Codes::load(tile + line * kCodeLine);
  if constexpr (Bits != 3) return load_fields<Bits>(tile, line);
  return load_fields<2>(tile, line) | load_fields<1>(tile + 2 * kCodeTile / 8, line, 2);
}

inline int32_t four_inputs(const int8_t* x) {
  int32_t word;
  std::memcpy(&word, x, sizeof(word));
  return word;
}

// Rows whose integer and float sums fill the registers together.
template <int Planes>
constexpr int kCodeRows = IntSums::has_dot ? (Planes == 2 ? 4 : 6) : 1;
constexpr int kUnrolledLines = IntSums::has_dot ? 8 : 1;

// One number from the integer sums of both planes.
template <int Planes>
inline Vec whole_sum(Vec low, Vec high) {
  if constexpr (Planes == 2) return fma(high, Vec::set(256.0f), low);
  return low;
}

// What a group of one row brings to all outputs.
struct GroupOfRow {
  Vec scale;  // of its codes
  Vec sum;    // of what they stand for

  GroupOfRow(const QuantizedRows& x, int64_t row, int64_t group)
      : scale(Vec::set(x.scale[row * x.groups + group])),
        sum(Vec::set(x.sums[row * x.groups + group])) {}

  // Adds what they give to a register of outputs: weight scale * (codes of the weights . codes of
  // x) * x scale + weight offset * (sum of x). The offsets lie kOutBlock behind the scales.
  template <typename S>
  Vec add_to(Vec total, Vec dot, const S* scales) const {
    const Vec scaled = fma(dot * scale, load_scales(scales), total);
    return fma(sum, load_scales(scales + kOutBlock), scaled);
  }
};

// Integer sums of R rows and one block of outputs.
template <int R, int Planes>
struct GroupSums {
  IntSums sums[R][Planes][kHalves];

  void clear() {
    INFOPT_UNROLL
    for (int r = 0; r < R; ++r) {
      INFOPT_UNROLL
      for (int p = 0; p < Planes; ++p) {
        INFOPT_UNROLL
        for (int h = 0; h < kHalves; ++h) sums[r][p][h] = IntSums::zero();
      }
    }
  }

  // Adds the products with kMinGroup inputs: one half of two tiles.
  template <int Bits, int Half>
  void multiply(const uint8_t* tiles, const int8_t* const (&x)[Planes], int64_t stride) {
#pragma GCC unroll kUnrolledLines
    for (int line = 0; line < 8; ++line) {
      Codes codes[kHalves];
      INFOPT_UNROLL
      for (int h = 0; h < kHalves; ++h) {
        codes[h] = load_codes<Bits>(tiles + h * kCodeTile * Bits / 8, 8 * Half + line);
      }
      INFOPT_UNROLL
      for (int r = 0; r < R; ++r) {
        INFOPT_UNROLL
        for (int p = 0; p < Planes; ++p) {
          const int32_t inputs = four_inputs(x[p] + r * stride + line * 4);
          INFOPT_UNROLL
          for (int h = 0; h < kHalves; ++h) sums[r][p][h].add(codes[h], inputs);
        }
      }
    }
  }

  // The sums of one row as floats: outputs i and following.
  Vec dot(int r, int i) const {
    const auto& row = sums[r];
    const int h = i / kCodeTileOut, part = i % kCodeTileOut / Vec::width;
    return whole_sum<Planes>(row[0][h].part(part), row[Planes - 1][h].part(part));
  }
};

// R rows of x, one block of outputs and the float sums of both.
template <int R, int Planes, int Bits, typename S>
struct RowSums {
  static constexpr int N = kOutBlock / Vec::width;
  static constexpr int64_t kStepBytes = kMinGroup * kOutBlock * Bits / 8;
  const QuantizedRows& x;
  const uint8_t* codes;
  int64_t first_row;
  Vec total[R][N];

  RowSums(const QuantizedRows& rows, const uint8_t* block, int64_t row)
      : x(rows), codes(block), first_row(row) {
    INFOPT_UNROLL
    for (int r = 0; r < R; ++r) {
      INFOPT_UNROLL
      for (int n = 0; n < N; ++n) total[r][n] = Vec::zero();
    }
  }

  // Adds the products of step number `step` to the sums of its group.
  void multiply(int64_t step, GroupSums<R, Planes>& group) const {
    const int64_t offset = first_row * x.width + step * kMinGroup;
    const int8_t* planes[Planes];
    planes[0] = x.low + offset;
    if constexpr (Planes == 2) planes[1] = x.high + offset;
    const uint8_t* tiles = codes + step / 2 * 2 * kStepBytes;
    if (step % 2 == 0) {
      group.template multiply<Bits, 0>(tiles, planes, x.width);
    } else {
      group.template multiply<Bits, 1>(tiles, planes, x.width);
    }
  }

  void add(const GroupSums<R, Planes>& group, const S* scales, int64_t g) {
    INFOPT_UNROLL
    for (int r = 0; r < R; ++r) {
      const GroupOfRow of_row(x, first_row + r, g);
      INFOPT_UNROLL
      for (int n = 0; n < N; ++n) {
        const int i = n * Vec::width;
        total[r][n] = of_row.add_to(total[r][n], group.dot(r, i), scales + i);
      }
    }
  }

  void store(float* sums) const {
    INFOPT_UNROLL
    for (int r = 0; r < R; ++r) {
      INFOPT_UNROLL
      for (int n = 0; n < N; ++n) total[r][n].store(sums + r * kOutBlock + n * Vec::width);
    }
  }
};

// R rows times one block of outputs.
template <int R, int Planes, int Bits, typename S>
[[gnu::noinline]] void block_rows(const QuantizedArgs& args, const QuantizedRows& x,
                                  const Block<S>& block, int64_t first_row, Ahead& ahead,
                                  float* sums) {
  const int64_t num_steps = x.width / kMinGroup, steps_per_group = args.group_size / kMinGroup;
  const S* scales = block.scales;
  constexpr int64_t kScaleBytes = 2 * kOutBlock * sizeof(S);
  Ahead scales_ahead(scales, x.groups * kScaleBytes, kScaleBytes, 1);
  RowSums<R, Planes, Bits, S> rows(x, block.codes, first_row);
  for (int64_t g = 0, step = 0; g < x.groups; ++g, scales += 2 * kOutBlock) {
    GroupSums<R, Planes> group;
    group.clear();
    scales_ahead.next();
    for (const int64_t end = std::min(step + steps_per_group, num_steps); step < end; ++step) {
      ahead.next();
      rows.multiply(step, group);
    }
    rows.add(group, scales, g);
  }
  rows.store(sums);
}

// Writes sums to y in its type.
inline void finish_rows(const QuantizedArgs& args, const float* sums, int64_t first_row,
                        int64_t rows, int64_t first_out) {
  if (args.is_float) {
    write_rows<float>(args.linear, sums, first_row, rows, first_out);
  } else {
    write_rows<bf16>(args.linear, sums, first_row, rows, first_out);
  }
}

template <int Planes, int Bits, typename S>
void vector_block(const QuantizedArgs& args, const QuantizedRows& x, const Block<S>& block) {
  constexpr int kRows = kCodeRows<Planes>;
  alignas(64) float sums[kRows * kOutBlock];
  const int64_t num_rows = args.linear.num_rows, step = rows_per_pass(num_rows, kRows);
  constexpr int64_t kStepBytes = kMinGroup * kOutBlock * Bits / 8;
  Ahead ahead(block.codes, x.width / kMinGroup * kStepBytes, kStepBytes,
              num_passes(num_rows, kRows));
  for (int64_t row = 0; row < num_rows; row += step) {
    const int64_t rows = std::min(step, num_rows - row);
    with_rows<kRows>(
        rows, [&](auto R) { block_rows<R, Planes, Bits>(args, x, block, row, ahead, sums); });
    finish_rows(args, sums, row, rows, block.first_out);
  }
}

}  // namespace infopt
