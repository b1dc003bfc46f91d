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

void compute_blocks(const QuantizedArgs& args, const QuantizedRows& x, int64_t begin, int64_t end) {
  with_code_bits(args.code_bits, [&](auto Bits) {
    args.activation_bits == 16 ? compute_blocks<2, Bits>(args, x, begin, end)
                               : compute_blocks<1, Bits>(args, x, begin, end);
  });
}

// Few rows: every thread quantizes them for itself, which takes less than handing them over.
bool quantize_alone(const LinearArgs& a) { return a.num_rows * a.in_features <= 1 << 15; }

}  // namespace

void linear_quantized(const QuantizedArgs& args) {
  if (args.linear.num_rows == 0) return;
  if (dequantizing_pays(args)) return linear_dequantized(args);
  const int threads = args.linear.num_threads;
  const int64_t blocks = num_out_blocks(args.linear.out_features);
  if (quantize_alone(args.linear)) {
    return parallel_ranges(blocks, threads, [&](int64_t begin, int64_t end) {
      if (begin < end) compute_blocks(args, quantize_rows(args, 1), begin, end);
    });
  }
  const QuantizedRows x = quantize_rows(args, threads);
  parallel_ranges(blocks, threads,
                  [&](int64_t begin, int64_t end) { compute_blocks(args, x, begin, end); });
}

}  // namespace infopt
