// bfloat16 matrix product. Weights stream from memory once per call; each thread owns a range of
// output blocks, so no sums are shared.
//
// With AMX a tile product multiplies 16 rows of x with 32 inputs of 16 outputs. Without it the
// AVX-512 dot product (or a widening fallback) takes up to four rows at a time.
#include "bf16_tiles.h"

namespace infopt {
namespace {

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
        case 1:
          block_rows<1>(a, from, stride, weights, row, out);
          break;
        case 2:
          block_rows<2>(a, from, stride, weights, row, out);
          break;
        case 3:
          block_rows<3>(a, from, stride, weights, row, out);
          break;
        default:
          block_rows<4>(a, from, stride, weights, row, out);
      }
    }
  }
}

#if defined(INFOPT_AMX)

void amx_blocks(const LinearArgs& a, const TiledRows& x, int64_t begin, int64_t end) {
  const int64_t block_size = padded(a.in_features) * kOutBlock;
  const bf16* packed = static_cast<const bf16*>(a.packed);
  TileScope tiles;
  finish_stores();
  int64_t block = begin;
  if (a.num_rows <= 16) {
    tiles.configure(static_cast<int>(a.num_rows));
    for (; block + 2 <= end; block += 2) {
      multiply_two_blocks(a, x, packed + block * block_size, block_size, block * kOutBlock);
    }
  }
  for (; block < end; ++block) {
    multiply_block(a, x, packed + block * block_size, block * kOutBlock, tiles);
  }
}

#endif

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
    return parallel_ranges(blocks, args.num_threads,
                           [&](int64_t begin, int64_t end) { amx_blocks(args, rows, begin, end); });
  }
#endif
  parallel_ranges(blocks, args.num_threads,
                  [&](int64_t begin, int64_t end) { vector_blocks(args, x, stride, begin, end); });
}

}  // namespace infopt
