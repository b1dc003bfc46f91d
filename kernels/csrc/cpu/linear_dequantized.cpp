// Quantized weights times many bfloat16 rows: each thread dequantizes a block of outputs into its
// cache and multiplies all rows with it.
#include "bf16_tiles.h"
#include "code_rows.h"

namespace infopt {

#if defined(INFOPT_AMX)
namespace {

// Four inputs of sixteen outputs (one line of a code tile) as two lines of a bfloat16 tile.
inline void dequantize_line(Codes codes, Vec scale, Vec offset, bf16* pairs) {
  Vec value[4];
  for (int i = 0; i < 4; ++i) {
    const __m512i byte =
        _mm512_and_si512(_mm512_srli_epi32(codes.v, 8 * i), _mm512_set1_epi32(255));
    value[i] = fma({_mm512_cvtepi32_ps(byte)}, scale, offset);
  }
  // The conversion puts the second sixteen behind the first; a pair wants them side by side.
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                       23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int i = 0; i < 2; ++i) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(value[2 * i + 1].v, value[2 * i].v);
    _mm512_storeu_si512(pairs + i * kTileIn, _mm512_permutexvar_epi16(interleave, both));
  }
}

// All inputs of one block of outputs, in the layout of pack_bf16.
template <int Bits, typename S>
void dequantize_block(const QuantizedArgs& args, const uint8_t* codes, const S* scales,
                      bf16* packed) {
  const int64_t width = padded(args.linear.in_features);
  for (int64_t k = 0; k < width; k += kMinGroup) {
    const S* scale = scales + k / args.group_size * 2 * kOutBlock;
    for (int h = 0; h < kHalves; ++h) {
      const int64_t index = k / kCodeTileIn * kHalves + h;
      const uint8_t* tile = codes + index * kCodeTile * Bits / 8;
      const Vec d = load_scales(scale + h * kCodeTileOut);
      const Vec m = load_scales(scale + kOutBlock + h * kCodeTileOut);
      bf16* to = packed + k * kOutBlock + h * kTile;
      const int first = static_cast<int>(k % kCodeTileIn) / 4;
      for (int line = 0; line < 8; ++line) {
        dequantize_line(load_codes<Bits>(tile, first + line), d, m, to + line * 2 * kTileIn);
      }
    }
  }
}

template <typename S>
void multiply_blocks(const QuantizedArgs& args, const TiledRows& x, int64_t begin, int64_t end) {
  static thread_local Scratch scratch;
  const LinearArgs& a = args.linear;
  const int64_t code_bytes = packed_code_bytes(kOutBlock, a.in_features, args.code_bits);
  const int64_t scale_step = num_groups(a.in_features, args.group_size) * 2 * kOutBlock;
  scratch.reserve(Scratch::size_of<bf16>(padded(a.in_features) * kOutBlock));
  bf16* weights = scratch.take<bf16>(padded(a.in_features) * kOutBlock);
  TileScope tiles;
  for (int64_t i = begin; i < end; ++i) {
    const uint8_t* codes = static_cast<const uint8_t*>(a.packed) + i * code_bytes;
    const S* scales = static_cast<const S*>(args.scales) + i * scale_step;
    if (args.code_bits == 8) {
      dequantize_block<8>(args, codes, scales, weights);
    } else {
      dequantize_block<4>(args, codes, scales, weights);
    }
    finish_stores();
    multiply_block(a, x, weights, i * kOutBlock, tiles);
  }
}

}  // namespace

bool dequantizing_pays(const QuantizedArgs& args) {
  // Applying scales to sums costs rows / group_size per input and output, dequantizing a constant.
  const LinearArgs& a = args.linear;
  return !args.is_float && args.activation_bits == 16 && 2 * a.num_rows > args.group_size &&
         args.group_size < a.in_features && amx_permitted();
}

void linear_dequantized(const QuantizedArgs& args) {
  int64_t stride;
  const bf16* rows = pad_rows(args.linear, stride);
  const TiledRows x = tile_rows(args.linear, rows, stride);
  const int64_t blocks = num_out_blocks(args.linear.out_features);
  parallel_ranges(blocks, args.linear.num_threads, [&](int64_t begin, int64_t end) {
    if (args.half_scales) return multiply_blocks<half>(args, x, begin, end);
    multiply_blocks<float>(args, x, begin, end);
  });
}

#else

bool dequantizing_pays(const QuantizedArgs&) { return false; }

void linear_dequantized(const QuantizedArgs&) {}

#endif

}  // namespace infopt
