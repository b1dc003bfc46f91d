// Products of quantized weights and quantized activations, up to four rows at a time, and the AMX
// path for weights with one scale per output. See quantized.h for the formats.
#include <algorithm>
#include <cstring>

#include "amx.h"
#include "half.h"
#include "int_vec.h"
#include "linear_rows.h"
#include "quantize_rows.h"

namespace infopt {
namespace {

constexpr int64_t kCodeTile = kCodeTileIn * kCodeTileOut;
constexpr int64_t kMaxVectorRows = 4;
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
void finish_rows(const QuantizedArgs& args, const QuantizedRows& x, float* sums, int64_t first_row,
                 int64_t rows, int64_t first_out) {
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
      case 1: block_rows<1, Planes, Bits>(args, x, block, row, sums); break;
      case 2: block_rows<2, Planes, Bits>(args, x, block, row, sums); break;
      case 3: block_rows<3, Planes, Bits>(args, x, block, row, sums); break;
      default: block_rows<4, Planes, Bits>(args, x, block, row, sums);
    }
    finish_rows(args, x, sums, row, rows, block.first_out);
  }
}

#if defined(INFOPT_AMX)

// Tile products pay off from a few rows on: sums of every group leave the tiles.
bool worth_amx(const QuantizedArgs& args) {
  return amx_permitted() && args.linear.num_rows > kMaxVectorRows;
}

// A tile of codes as bytes: 4-bit codes are unpacked into `buffer`.
template <int Bits>
inline const uint8_t* byte_tile(const uint8_t* tile, uint8_t* buffer) {
  if constexpr (Bits == 8) return tile;
  for (int line = 0; line < 16; ++line) {
    _mm512_store_si512(buffer + line * 64, load_codes<Bits>(tile, line).v);
  }
  finish_stores();
  return buffer;
}

// Configures the tiles: 4 and 5 are the two planes of up to 16 rows, or the only plane of up to 32.
// `inputs` is what one product covers.
void configure_codes(int64_t rows, int64_t inputs, bool two_planes) {
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
void amx_rows(const QuantizedArgs& args, const QuantizedRows& x, const Block<S>& block,
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
      const float x_sum = x.sums[(first_row + r) * x.groups + group];
      for (int h = 0; h < kHalves; ++h) {
        const int32_t* ints = Planes == 1 && r >= 16 ? second[h][r - 16] : first[h][r];
        add_group<Planes>(ints, second[h][r % 16], scale + h * kCodeTileOut, x_sum,
                          sums + r * kOutBlock + h * kCodeTileOut);
      }
    }
  }
}

template <int Planes, int Bits, typename S>
void amx_block(const QuantizedArgs& args, const QuantizedRows& x, const Block<S>& block) {
  constexpr int64_t kMaxRows = Planes == 2 ? 16 : 32;
  const int64_t inputs = args.group_size % kCodeTileIn == 0 ? kCodeTileIn : kMinGroup;
  alignas(64) float sums[kMaxRows * kOutBlock];
  for (int64_t row = 0; row < args.linear.num_rows; row += kMaxRows) {
    const int64_t rows = std::min(kMaxRows, args.linear.num_rows - row);
    if (row == 0 || rows < kMaxRows) configure_codes(rows, inputs, Planes == 2);
    amx_rows<Planes, Bits>(args, x, block, row, rows, inputs, sums);
    finish_rows(args, x, sums, row, rows, block.first_out);
  }
}
#else

bool worth_amx(const QuantizedArgs&) { return false; }

#endif

template <int Planes, int Bits, typename S>
void compute_blocks(const QuantizedArgs& args, const QuantizedRows& x, int64_t begin, int64_t end) {
  const int64_t code_bytes = kOutBlock * x.width * Bits / 8;
  [[maybe_unused]] const bool use_amx = worth_amx(args);
  for (int64_t i = begin; i < end; ++i) {
    const Block<S> block = {static_cast<const uint8_t*>(args.linear.packed) + i * code_bytes,
                            static_cast<const S*>(args.scales) + i * x.groups * 2 * kOutBlock,
                            i * kOutBlock};
#if defined(INFOPT_AMX)
    if (use_amx) {
      amx_block<Planes, Bits>(args, x, block);
      continue;
    }
#endif
    vector_block<Planes, Bits>(args, x, block);
  }
#if defined(INFOPT_AMX)
  if (use_amx) _tile_release();
#endif
}

template <int Planes, int Bits>
void compute_blocks(const QuantizedArgs& args, const QuantizedRows& x, int64_t begin, int64_t end) {
  if (args.half_scales) return compute_blocks<Planes, Bits, half>(args, x, begin, end);
  compute_blocks<Planes, Bits, float>(args, x, begin, end);
}

void pack_block(const PackCodesArgs& a, int64_t first_out, uint8_t* block) {
  const int64_t end = std::min(first_out + kOutBlock, a.out_features);
  for (int64_t o = first_out; o < end; ++o) {
    const int64_t half = (o - first_out) / kCodeTileOut, column = (o - first_out) % kCodeTileOut;
    for (int64_t k = 0; k < a.in_features; ++k) {
      const uint8_t code = a.codes[o * a.in_features + k];
      const int64_t tile = (k / kCodeTileIn * kHalves + half) * kCodeTile;
      const int64_t byte = (k % kCodeTileIn / 4 * kCodeTileOut + column) * 4 + k % 4;
      if (a.code_bits == 8) {
        block[tile + byte] = code;
      } else {
        const int64_t low = byte % (kCodeTile / 2);
        block[tile / 2 + low] |= static_cast<uint8_t>(byte == low ? code : code << 4);
      }
    }
  }
}

}  // namespace

void pack_codes(const PackCodesArgs& args) {
  const int64_t block_bytes = packed_code_bytes(kOutBlock, args.in_features, args.code_bits);
  parallel_for(num_out_blocks(args.out_features), args.num_threads, [&](int64_t i) {
    uint8_t* block = args.packed + i * block_bytes;
    std::fill_n(block, block_bytes, uint8_t{0});
    pack_block(args, i * kOutBlock, block);
  });
}

void linear_quantized(const QuantizedArgs& args) {
  if (args.linear.num_rows == 0) return;
  const QuantizedRows x = quantize_rows(args);
  const int64_t blocks = num_out_blocks(args.linear.out_features);
  const int planes = args.activation_bits / 8;
  parallel_ranges(blocks, args.linear.num_threads, [&](int64_t begin, int64_t end) {
    if (args.code_bits == 8) {
      planes == 2 ? compute_blocks<2, 8>(args, x, begin, end)
                  : compute_blocks<1, 8>(args, x, begin, end);
    } else {
      planes == 2 ? compute_blocks<2, 4>(args, x, begin, end)
                  : compute_blocks<1, 4>(args, x, begin, end);
    }
  });
}

}  // namespace infopt
