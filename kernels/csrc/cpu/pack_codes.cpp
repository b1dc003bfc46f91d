// Lays codes out in the order in which the products read them; see quantized.h.
#include <algorithm>

#include "parallel.h"
#include "quantized.h"

namespace infopt {
namespace {

constexpr int64_t kCodeTile = kCodeTileIn * kCodeTileOut;
constexpr int64_t kHalves = kOutBlock / kCodeTileOut;

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

}  // namespace infopt
