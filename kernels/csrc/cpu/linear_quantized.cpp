// Products of quantized weights: quantizes the rows, then each thread takes a range of blocks.
#include "code_rows.h"
#include "code_tiles.h"

namespace infopt {
namespace {

// One row is read-bound; from two on tile products pay.
bool worth_amx([[maybe_unused]] const QuantizedArgs& args) {
#if defined(INFOPT_AMX)
  return amx_permitted() && args.linear.num_rows > 1;
#else
  return false;
#endif
}

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
      code_block<Planes, Bits>(args, x, block);
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

}  // namespace

void linear_quantized(const QuantizedArgs& args) {
  if (args.linear.num_rows == 0) return;
  if (dequantizing_pays(args)) return linear_dequantized(args);
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
