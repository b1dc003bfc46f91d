// Quantized weights times many bfloat16 rows: each thread dequantizes a block of outputs into its
// cache and multiplies all rows with it.
#include "bf16_rows.h"
#include "code_rows.h"

namespace infopt {

#if defined(__AVX512BF16__)
namespace {

// Scales for codes that are read as floats in [base, 2 base): there a code is the top of the
// mantissa and needs no conversion.
template <int Bits>
struct Dequantizer {
  static constexpr int kTop = 23 - Bits;     // position of a code in the mantissa
  static constexpr float kBase = 1 << Bits;  // its exponent
  static constexpr int kBaseBits = (127 + Bits) << 23;
  Vec scale, offset;

  Dequantizer(Vec s, Vec o) : scale(s), offset(fma(s, Vec::set(-kBase), o)) {}

  // Input `i` of the four that a line holds.
  __m512i value(Codes codes, int i) const {
    const int up = kTop - 8 * i;
    const __m512i moved =
        up >= 0 ? _mm512_slli_epi32(codes.v, up) : _mm512_srli_epi32(codes.v, -up);
    // 0xEA is (a & b) | c.
    const __m512i bits = _mm512_ternarylogic_epi32(
        moved, _mm512_set1_epi32(((1 << Bits) - 1) << kTop), _mm512_set1_epi32(kBaseBits), 0xEA);
    const Vec value = fma({_mm512_castsi512_ps(bits)}, scale, offset);
    return _mm512_add_epi32(_mm512_castps_si512(value.v), _mm512_set1_epi32(0x8000));  // rounds
  }

  // Four inputs of sixteen outputs (one line of a code tile) as two lines of a bfloat16 tile.
  void line(Codes codes, bf16* pairs) const {
    for (int i = 0; i < 2; ++i) {
      const __m512i even = _mm512_srli_epi32(value(codes, 2 * i), 16);
      const __m512i both = _mm512_mask_blend_epi16(0xAAAAAAAA, even, value(codes, 2 * i + 1));
      _mm512_storeu_si512(pairs + i * kTileIn, both);
    }
  }
};

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
      const S* half_scale = scale + h * kCodeTileOut;
      const Dequantizer<Bits> to_bf16(load_scales(half_scale), load_scales(half_scale + kOutBlock));
      bf16* to = packed + k * kOutBlock + h * kTile;
      const int half = static_cast<int>(k % kCodeTileIn / kMinGroup);
      for (int line = 0; line < 8; ++line) {
        to_bf16.line(load_codes<Bits>(tile, 8 * half + line), to + line * 2 * kTileIn);
      }
    }
  }
}

template <typename S>
void dequantize_block(const QuantizedArgs& args, int64_t block, bf16* packed) {
  const LinearArgs& a = args.linear;
  const uint8_t* codes = static_cast<const uint8_t*>(a.packed) +
                         block * packed_code_bytes(kOutBlock, a.in_features, args.code_bits);
  const S* scales = static_cast<const S*>(args.scales) +
                    block * num_groups(a.in_features, args.group_size) * 2 * kOutBlock;
  with_code_bits(args.code_bits,
                 [&](auto Bits) { dequantize_block<Bits>(args, codes, scales, packed); });
}

// Calls multiply(weights, block) for each block of a range.
template <typename F>
void for_each_block(const QuantizedArgs& args, int64_t begin, int64_t end, const F& multiply) {
  static thread_local Scratch scratch;
  const int64_t size = padded(args.linear.in_features) * kOutBlock;
  scratch.reserve(Scratch::size_of<bf16>(size));
  bf16* weights = scratch.take<bf16>(size);
  for (int64_t block = begin; block < end; ++block) {
    if (args.half_scales) {
      dequantize_block<half>(args, block, weights);
    } else {
      dequantize_block<float>(args, block, weights);
    }
    multiply(weights, block);
  }
}

void vector_blocks(const QuantizedArgs& args, const bf16* x, int64_t stride, int64_t begin,
                   int64_t end) {
  for_each_block(args, begin, end, [&](const bf16* weights, int64_t block) {
    const int64_t bytes = packed_code_bytes(kOutBlock, args.linear.in_features, args.code_bits);
    const uint8_t* codes = static_cast<const uint8_t*>(args.linear.packed) + block * bytes;
    Ahead ahead = bf16_ahead(args.linear, codes, bytes);
    multiply_rows_of_block(args.linear, x, stride, weights, block * kOutBlock, ahead);
  });
}

#if defined(INFOPT_AMX)
void amx_blocks(const QuantizedArgs& args, const TiledRows& x, int64_t begin, int64_t end) {
  TileScope tiles;
  for_each_block(args, begin, end, [&](const bf16* weights, int64_t block) {
    finish_stores();
    multiply_block(args.linear, x, weights, block * kOutBlock, tiles);
  });
}
#endif

// Applying scales to sums costs rows / group_size per input and output, dequantizing a constant.
// Without AMX a product of bfloat16 is as fast as one of two planes of bytes, and the sums of a
// group are what it saves; measured, that pays the constant from about 24 rows.
bool enough_rows(const QuantizedArgs& args) {
#if defined(INFOPT_AMX)
  if (amx_permitted()) return 2 * args.linear.num_rows > args.group_size;
#endif
  return args.linear.num_rows > 24;
}

}  // namespace

bool dequantizing_pays(const QuantizedArgs& args) {
  return !args.is_float && args.activation_bits == 16 &&
         args.group_size < args.linear.in_features && enough_rows(args);
}

void linear_dequantized(const QuantizedArgs& args) {
  const LinearArgs& a = args.linear;
  int64_t stride;
  const bf16* x = pad_rows(a, stride);
  const int64_t blocks = num_out_blocks(a.out_features);
#if defined(INFOPT_AMX)
  if (amx_permitted()) {
    const TiledRows rows = tile_rows(a, x, stride);
    return parallel_ranges(blocks, a.num_threads,
                           [&](int64_t begin, int64_t end) { amx_blocks(args, rows, begin, end); });
  }
#endif
  parallel_ranges(blocks, a.num_threads,
                  [&](int64_t begin, int64_t end) { vector_blocks(args, x, stride, begin, end); });
}

#else

bool dequantizing_pays(const QuantizedArgs&) { return false; }

void linear_dequantized(const QuantizedArgs&) {}

#endif

}  // namespace infopt
