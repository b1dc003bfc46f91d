// bfloat16 products with AMX tiles: rows of x and blocks of packed weights.
#pragma once

#include <algorithm>
#include <cstring>

#include "amx.h"
#include "linear_rows.h"
#include "parallel.h"
#include "scratch.h"

namespace infopt {

constexpr int64_t kTileIn = 32;   // inputs per tile
constexpr int64_t kTileOut = 16;  // outputs, or rows of x, per tile
constexpr int64_t kTile = kTileIn * kTileOut;
constexpr int64_t kTileBytes = 64;  // bytes per row of a tile

inline int64_t padded(int64_t in_features) {
  return (in_features + kTileIn - 1) / kTileIn * kTileIn;
}

// Where the last tile would read behind a row, the rows are copied with zeros after them.
inline const bf16* pad_rows(const LinearArgs& a, int64_t& stride) {
  const bf16* x = static_cast<const bf16*>(a.x);
  stride = a.x_stride;
  if (a.in_features % kTileIn == 0) return x;
  static thread_local Scratch scratch;
  const int64_t width = padded(a.in_features);
  scratch.reserve(Scratch::size_of<bf16>(a.num_rows * width));
  bf16* copy = scratch.take<bf16>(a.num_rows * width);
  for (int64_t r = 0; r < a.num_rows; ++r) {
    std::copy_n(x + r * a.x_stride, a.in_features, copy + r * width);
    std::fill_n(copy + r * width + a.in_features, width - a.in_features, bf16{0});
  }
  stride = width;
  return copy;
}

#if defined(INFOPT_AMX)

// Rows of x as the tiles read them: tile (i, k) holds rows 16 i .. of inputs 32 k ...
struct TiledRows {
  const bf16* data;
  int64_t row_bytes;   // between two rows of a tile
  int64_t tile_step;   // elements between the tiles of neighbouring inputs
  int64_t block_step;  // elements between rows 16 i and 16 (i + 1)

  const bf16* tile(int64_t row, int64_t k) const {
    return data + row / kTileOut * block_step + k * tile_step;
  }
};

// Starts to load the two tiles that are needed four steps later. The hardware stops prefetching at
// the end of a page.
inline void prefetch_tiles(const bf16* weights) {
  const bf16* ahead = weights + 4 * 2 * kTile;
  for (int64_t line = 0; line < 2 * kTile; line += 32) prefetch_line(ahead + line);
}

// Up to 16 rows times two blocks of outputs: each tile of x serves four tiles of weights.
inline void multiply_two_blocks(const LinearArgs& a, const TiledRows& x, const bf16* weights,
                                int64_t block_size, int64_t first_out) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < padded(a.in_features) / kTileIn; ++k, weights += 2 * kTile) {
    prefetch_tiles(weights);
    prefetch_tiles(weights + block_size);
    _tile_loadd(4, x.tile(0, k), x.row_bytes);
    _tile_loadd(6, weights, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + kTile, kTileBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, weights + block_size, kTileBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, weights + block_size + kTile, kTileBytes);
    _tile_dpbf16ps(3, 4, 7);
  }
  alignas(64) float sums[2][16 * kOutBlock];
  constexpr int64_t sum_bytes = kOutBlock * sizeof(float);
  _tile_stored(0, sums[0], sum_bytes);
  _tile_stored(1, sums[0] + 16, sum_bytes);
  _tile_stored(2, sums[1], sum_bytes);
  _tile_stored(3, sums[1] + 16, sum_bytes);
  write_rows<bf16>(a, sums[0], 0, a.num_rows, first_out);
  write_rows<bf16>(a, sums[1], 0, a.num_rows, first_out + kOutBlock);
}

// 1 to 32 rows times one block of outputs.
inline void multiply_rows(const LinearArgs& a, const TiledRows& x, const bf16* weights,
                          int64_t first_row, int64_t rows, int64_t first_out) {
  const bool two = rows > 16;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < padded(a.in_features) / kTileIn; ++k, weights += 2 * kTile) {
    prefetch_tiles(weights);
    _tile_loadd(4, x.tile(first_row, k), x.row_bytes);
    _tile_loadd(6, weights, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + kTile, kTileBytes);
    _tile_dpbf16ps(1, 4, 7);
    if (two) {
      _tile_loadd(5, x.tile(first_row + 16, k), x.row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float sums[32 * kOutBlock];
  constexpr int64_t sum_bytes = kOutBlock * sizeof(float);
  _tile_stored(0, sums, sum_bytes);
  _tile_stored(1, sums + 16, sum_bytes);
  if (two) {
    _tile_stored(2, sums + 16 * kOutBlock, sum_bytes);
    _tile_stored(3, sums + 16 * kOutBlock + 16, sum_bytes);
  }
  write_rows<bf16>(a, sums, first_row, rows, first_out);
}

// All rows times one block of outputs.
inline void multiply_block(const LinearArgs& a, const TiledRows& x, const bf16* weights,
                           int64_t first_out, TileScope& tiles) {
  for (int64_t row = 0; row < a.num_rows; row += 32) {
    const int64_t rows = std::min<int64_t>(32, a.num_rows - row);
    tiles.configure(static_cast<int>(rows));
    multiply_rows(a, x, weights, row, rows, first_out);
  }
}

// Many rows are copied tile by tile: a tile then is one kilobyte in a row, not 16 lines far apart
// that compete for the same sets of the cache.
inline TiledRows tile_rows(const LinearArgs& a, const bf16* x, int64_t stride) {
  constexpr int64_t kWorthCopying = 33;
  if (a.num_rows < kWorthCopying) {
    return {x, stride * static_cast<int64_t>(sizeof(bf16)), kTileIn, kTileOut * stride};
  }
  static thread_local Scratch scratch;
  const int64_t width = padded(a.in_features);
  const int64_t num_tiles = (a.num_rows + kTileOut - 1) / kTileOut;
  scratch.reserve(Scratch::size_of<bf16>(num_tiles * kTileOut * width));
  bf16* copy = scratch.take<bf16>(num_tiles * kTileOut * width);
  parallel_ranges(num_tiles, a.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin * kTileOut; r < std::min(end * kTileOut, a.num_rows); ++r) {
      bf16* to = copy + r / kTileOut * kTileOut * width + r % kTileOut * kTileIn;
      for (int64_t k = 0; k < width; k += kTileIn) {
        std::memcpy(to + k * kTileOut, x + r * stride + k, kTileBytes);
      }
    }
  });
  return {copy, kTileBytes, kTile, kTileOut * width};
}

#endif

}  // namespace infopt
