// Lays codes out in the order in which the products read them; see quantized.h.
#include <algorithm>

#include "parallel.h"
#include "quantized.h"

namespace infopt {
namespace {

// Writes a field of `width` bits: byte `byte` of a tile of bytes.
void put(uint8_t* plane, int width, int64_t byte, int value) {
  const int64_t line = byte / kCodeLine, lines = 2 * width;
  const int64_t shift = line / lines * width;
  plane[line % lines * kCodeLine + byte % kCodeLine] |= static_cast<uint8_t>(value << shift);
}

void put_code(uint8_t* tile, int bits, int64_t byte, int code) {
  if (bits != 3) return put(tile, bits, byte, code);
  put(tile, 2, byte, code & 3);
  put(tile + 2 * kCodeTile / 8, 1, byte, code >> 2);
}

void pack_block(const PackCodesArgs& a, int64_t first_out, uint8_t* block) {
  const int64_t end = std::min(first_out + kOutBlock, a.out_features);
  for (int64_t o = first_out; o < end; ++o) {
    const int64_t half = (o - first_out) / kCodeTileOut, column = (o - first_out) % kCodeTileOut;
    for (int64_t k = 0; k < a.in_features; ++k) {
      const uint8_t code = a.codes[o * a.in_features + k];
      const int64_t tile = (k / kCodeTileIn * kHalves + half) * kCodeTile;
      const int64_t byte = (k % kCodeTileIn / 4 * kCodeTileOut + column) * 4 + k % 4;
      put_code(block + tile * a.code_bits / 8, a.code_bits, byte, code);
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
