// bfloat16 matrix product. Weights stream from memory once per call; each thread owns a range of
// output blocks, so no sums are shared.
//
// With AMX a tile product multiplies 16 rows of x with 32 inputs of 16 outputs. Without it rows are
// multiplied with vectors.
#include "bf16_rows.h"

namespace infopt {
namespace {

void vector_blocks(const LinearArgs& a, const bf16* x, int64_t stride, int64_t begin, int64_t end) {
  const int64_t block_size = padded(a.in_features) * kOutBlock;
  for (int64_t block = begin; block < end; ++block) {
    const bf16* weights = static_cast<const bf16*>(a.packed) + block * block_size;
    Ahead ahead = bf16_ahead(a, weights, block_size * sizeof(bf16));
    multiply_rows_of_block(a, x, stride, weights, block * kOutBlock, ahead);
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

// Pairs of inputs of sixteen outputs side by side; see linear.h.
template <typename W>
void pack_pairs(const PackArgs& args) {
  const int64_t width = padded(args.in_features);
  const W* weight = static_cast<const W*>(args.weight);
  W* packed = static_cast<W*>(args.packed);
  parallel_for(num_out_blocks(args.out_features), args.num_threads, [&](int64_t i) {
    W* block = packed + i * kOutBlock * width;
    std::fill_n(block, kOutBlock * width, W{0});
    const int64_t first = i * kOutBlock, end = std::min(first + kOutBlock, args.out_features);
    for (int64_t o = first; o < end; ++o) {
      const int64_t column = o - first;
      W* tiles = block + column / kTileOut * kTile + column % kTileOut * 2;
      for (int64_t k = 0; k < args.in_features; ++k) {
        tiles[k / kTileIn * 2 * kTile + k % kTileIn / 2 * 2 * kTileOut + k % 2] =
            weight[o * args.in_features + k];
      }
    }
  });
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

void pack_bf16(const PackArgs& args) { pack_pairs<bf16>(args); }

void pack_fp8(const PackArgs& args) { pack_pairs<fp8>(args); }

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
