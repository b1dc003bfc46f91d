// bfloat16 matrix product. Weights stream from memory once per call; each thread owns a range of
// output blocks, so no sums are shared.
//
// With AMX a tile product multiplies 16 rows of x with 32 inputs of 16 outputs. Without it the
// AVX-512 dot product (or a widening fallback) takes up to four rows at a time.
#include <algorithm>
#include <cstring>

#include "amx.h"
#include "linear_rows.h"
#include "parallel.h"
#include "scratch.h"

namespace infopt {
namespace {

constexpr int64_t kTileIn = 32;    // inputs per tile
constexpr int64_t kTileOut = 16;   // outputs, or rows of x, per tile
constexpr int64_t kTile = kTileIn * kTileOut;
constexpr int64_t kTileBytes = 64;  // bytes per row of a tile

int64_t padded(int64_t in_features) {
  return (in_features + kTileIn - 1) / kTileIn * kTileIn;
}

// Sixteen (or eight) outputs times one pair of inputs, added to their sums.
struct PairDot {
#if defined(__AVX512BF16__)
  static Vec add(Vec sums, const bf16* weights, const bf16* pair) {
    int32_t bits;
    std::memcpy(&bits, pair, sizeof(bits));
    return {_mm512_dpbf16_ps(sums.v, (__m512bh)_mm512_set1_epi32(bits),
                             (__m512bh)_mm512_loadu_si512(weights))};
  }
#else
  static Vec add(Vec sums, const bf16* weights, const bf16* pair) {
    alignas(64) float even[Vec::width], odd[Vec::width];
    for (int i = 0; i < Vec::width; ++i) {
      even[i] = to_float(weights[2 * i]);
      odd[i] = to_float(weights[2 * i + 1]);
    }
    sums = fma(Vec::set(to_float(pair[0])), Vec::load(even), sums);
    return fma(Vec::set(to_float(pair[1])), Vec::load(odd), sums);
  }
#endif
};

// R rows times one block of outputs.
template <int R>
void block_rows(const LinearArgs& a, const bf16* x, int64_t stride, const bf16* weights,
                int64_t first_row, int64_t first_out) {
  constexpr int N = kOutBlock / Vec::width;
  Vec acc[R][N];
  for (auto& row : acc) {
    for (Vec& v : row) v = Vec::zero();
  }
  for (int64_t k = 0; k < padded(a.in_features); k += 2) {
    const bf16* tile = weights + k / kTileIn * 2 * kTile + k % kTileIn * kTileOut;
    for (int n = 0; n < N; ++n) {
      const int out = n * Vec::width;
      const bf16* pairs = tile + out / kTileOut * kTile + out % kTileOut * 2;
      for (int r = 0; r < R; ++r) acc[r][n] = PairDot::add(acc[r][n], pairs, x + r * stride + k);
    }
  }
  alignas(64) float sums[R * kOutBlock];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n].store(sums + r * kOutBlock + n * Vec::width);
  }
  write_rows<bf16>(a, sums, first_row, R, first_out);
}

void vector_blocks(const LinearArgs& a, const bf16* x, int64_t stride, int64_t begin, int64_t end) {
  const int64_t block_size = padded(a.in_features) * kOutBlock;
  for (int64_t block = begin; block < end; ++block) {
    const bf16* weights = static_cast<const bf16*>(a.packed) + block * block_size;
    for (int64_t row = 0; row < a.num_rows; row += 4) {
      const bf16* from = x + row * stride;
      const int64_t out = block * kOutBlock;
      switch (std::min<int64_t>(4, a.num_rows - row)) {
        case 1: block_rows<1>(a, from, stride, weights, row, out); break;
        case 2: block_rows<2>(a, from, stride, weights, row, out); break;
        case 3: block_rows<3>(a, from, stride, weights, row, out); break;
        default: block_rows<4>(a, from, stride, weights, row, out);
      }
    }
  }
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
void prefetch_tiles(const bf16* weights) {
  const bf16* ahead = weights + 4 * 2 * kTile;
  for (int64_t line = 0; line < 2 * kTile; line += 32) prefetch_line(ahead + line);
}

// Up to 16 rows times two blocks of outputs: each tile of x serves four tiles of weights.
void amx_two_blocks(const LinearArgs& a, const TiledRows& x, const bf16* weights,
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
void amx_block(const LinearArgs& a, const TiledRows& x, const bf16* weights, int64_t first_row,
               int64_t rows, int64_t first_out) {
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

void amx_blocks(const LinearArgs& a, const TiledRows& x, int64_t begin, int64_t end) {
  const int64_t block_size = padded(a.in_features) * kOutBlock;
  const bf16* packed = static_cast<const bf16*>(a.packed);
  TileScope tiles;
  finish_stores();
  int64_t block = begin;
  if (a.num_rows <= 16) {
    tiles.configure(static_cast<int>(a.num_rows));
    for (; block + 2 <= end; block += 2) {
      amx_two_blocks(a, x, packed + block * block_size, block_size, block * kOutBlock);
    }
  }
  for (; block < end; ++block) {
    for (int64_t row = 0; row < a.num_rows; row += 32) {
      const int64_t rows = std::min<int64_t>(32, a.num_rows - row);
      tiles.configure(static_cast<int>(rows));
      amx_block(a, x, packed + block * block_size, row, rows, block * kOutBlock);
    }
  }
}

// Many rows are copied tile by tile: a tile then is one kilobyte in a row, not 16 lines far apart
// that compete for the same sets of the cache.
TiledRows tile_rows(const LinearArgs& a, const bf16* x, int64_t stride) {
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

// Where the last tile would read behind a row, the rows are copied with zeros after them.
const bf16* pad_rows(const LinearArgs& a, int64_t& stride) {
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

}  // namespace

bool amx_available() {
#if defined(INFOPT_AMX)
  return amx_permitted();
#else
  return false;
#endif
}

int64_t packed_size_bf16(int64_t out_features, int64_t in_features) {
  return num_out_blocks(out_features) * kOutBlock * padded(in_features);
}

void pack_bf16(const PackArgs& args) {
  const int64_t width = padded(args.in_features);
  const bf16* weight = static_cast<const bf16*>(args.weight);
  bf16* packed = static_cast<bf16*>(args.packed);
  parallel_for(num_out_blocks(args.out_features), args.num_threads, [&](int64_t i) {
    bf16* block = packed + i * kOutBlock * width;
    std::fill_n(block, kOutBlock * width, bf16{0});
    const int64_t first = i * kOutBlock, end = std::min(first + kOutBlock, args.out_features);
    for (int64_t o = first; o < end; ++o) {
      const int64_t column = o - first;
      bf16* tiles = block + column / kTileOut * kTile + column % kTileOut * 2;
      for (int64_t k = 0; k < args.in_features; ++k) {
        tiles[k / kTileIn * 2 * kTile + k % kTileIn / 2 * 2 * kTileOut + k % 2] =
            weight[o * args.in_features + k];
      }
    }
  });
}

void linear_bf16(const LinearArgs& args) {
  if (args.num_rows == 0) return;
  int64_t stride;
  const bf16* x = pad_rows(args, stride);
  const int64_t blocks = num_out_blocks(args.out_features);
#if defined(INFOPT_AMX)
  if (amx_permitted()) {
    const TiledRows rows = tile_rows(args, x, stride);
    return parallel_ranges(blocks, args.num_threads, [&](int64_t begin, int64_t end) {
      amx_blocks(args, rows, begin, end);
    });
  }
#endif
  parallel_ranges(blocks, args.num_threads, [&](int64_t begin, int64_t end) {
    vector_blocks(args, x, stride, begin, end);
  });
}

}  // namespace infopt
