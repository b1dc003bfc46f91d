// Products with float8 weights, which stay one byte in memory. Few bfloat16 rows are multiplied
// with weights that become bfloat16 on their way into the registers; for other rows each thread
// widens a block of outputs into its cache and multiplies it as bfloat16 or float32.
#include "bf16_rows.h"
#include "f32_rows.h"
#include "int_vec.h"

namespace infopt {
namespace {

constexpr int64_t kElementsPerThread = 1 << 13;

const fp8* block_of(const LinearArgs& a, int64_t block) {
  return static_cast<const fp8*>(a.packed) + block * kOutBlock * padded(a.in_features);
}

// The scale of a row: its largest value becomes the largest of float8. NaN where it holds a NaN or
// an infinity, so that all its outputs become NaN.
template <typename T>
float scale_of(const T* x, int64_t size) {
  Magnitude largest = Magnitude::zero();
  for_each_vec(size, [&](int64_t i, int n) { largest.add(load(x + i, n)); });
  const float bound = largest.value();
  return bound == 0.0f ? 1.0f : bound / kLargestFp8;
}

template <typename T>
T exact(float x);
template <>
float exact<float>(float x) {
  return x;
}
template <>
bf16 exact<bf16>(float x) {
  return to_bf16(x);
}

// Replaces x by rows rounded to float8, padded with zeros, and says what they are multiplied with.
template <typename T>
LinearArgs rounded_rows(const Fp8Args& args) {
  static thread_local Scratch scratch;
  LinearArgs a = args.linear;
  const int64_t width = padded(a.in_features);
  scratch.reserve(Scratch::size_of<T>(a.num_rows * width) + Scratch::size_of<float>(a.num_rows));
  T* rows = scratch.take<T>(a.num_rows * width);
  float* scales = scratch.take<float>(a.num_rows);
  const int threads = threads_for(a.num_rows * width, kElementsPerThread, a.num_threads);
  parallel_ranges(a.num_rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = static_cast<const T*>(args.linear.x) + r * args.linear.x_stride;
      const float given = args.activation_scale;
      const float scale = given > 0 ? given : scale_of(x, a.in_features);
      for (int64_t i = 0; i < a.in_features; ++i) {
        rows[r * width + i] = exact<T>(round_to_fp8(to_float(x[i]) / scale));
      }
      std::fill_n(rows + r * width + a.in_features, width - a.in_features, T{});
      scales[r] = scale;
    }
  });
  a.x = rows;
  a.x_stride = width;
  a.row_scales = scales;
  return a;
}

// A block of outputs as [in][32] floats.
void widen_block(const fp8* block, int64_t width, float* out) {
  for (int64_t k = 0; k < width; k += kTileIn) {
    for (int64_t first = 0; first < kOutBlock; first += Vec::width) {
      const fp8* tile = block + k * kOutBlock + first / kTileOut * kTile + first % kTileOut * 2;
      for (int64_t line = 0; line < kTileIn / 2; ++line) {
        const Fp8Pair pair = Fp8Pair::load(tile + line * 2 * kTileOut);
        pair.even.store(out + (k + 2 * line) * kOutBlock + first);
        pair.odd.store(out + (k + 2 * line + 1) * kOutBlock + first);
      }
    }
  }
}

// A block of outputs as bfloat16, in the same layout.
void widen_block(const fp8* block, int64_t width, bf16* out) {
  for (int64_t i = 0; i < width * kOutBlock; i += 2 * Vec::width) widen_pairs(block + i, out + i);
}

// Calls multiply(weights, block) for each block of a range, with the weights as T.
template <typename T, typename F>
void for_each_block(const LinearArgs& a, int64_t begin, int64_t end, const F& multiply) {
  static thread_local Scratch scratch;
  const int64_t width = padded(a.in_features);
  scratch.reserve(Scratch::size_of<T>(width * kOutBlock));
  T* weights = scratch.take<T>(width * kOutBlock);
  for (int64_t block = begin; block < end; ++block) {
    widen_block(block_of(a, block), width, weights);
    multiply(static_cast<const T*>(weights), block);
  }
}

void float_blocks(const LinearArgs& a, int64_t begin, int64_t end) {
  const int64_t bytes = kOutBlock * padded(a.in_features);
  for_each_block<float>(a, begin, end, [&](const float* weights, int64_t block) {
    Ahead ahead = f32_ahead(a, block_of(a, block), bytes);
    multiply_f32_block(a, weights, block * kOutBlock, ahead);
  });
}

void vector_blocks(const LinearArgs& a, const bf16* x, int64_t stride, int64_t begin, int64_t end) {
  const int64_t bytes = kOutBlock * padded(a.in_features);
  if (a.num_rows <= kBf16Rows) {  // one pass: each weight is widened once
    for (int64_t block = begin; block < end; ++block) {
      Ahead ahead = bf16_ahead(a, block_of(a, block), bytes);
      multiply_rows_of_block(a, x, stride, block_of(a, block), block * kOutBlock, ahead);
    }
    return;
  }
  for_each_block<bf16>(a, begin, end, [&](const bf16* weights, int64_t block) {
    Ahead ahead = bf16_ahead(a, block_of(a, block), bytes);
    multiply_rows_of_block(a, x, stride, weights, block * kOutBlock, ahead);
  });
}

#if defined(INFOPT_AMX)
void amx_blocks(const LinearArgs& a, const TiledRows& x, int64_t begin, int64_t end) {
  TileScope tiles;
  for_each_block<bf16>(a, begin, end, [&](const bf16* weights, int64_t block) {
    finish_stores();
    multiply_block(a, x, weights, block * kOutBlock, tiles);
  });
}
#endif

void multiply_bf16(const LinearArgs& a) {
  int64_t stride;
  const bf16* x = pad_rows(a, stride);
  const int64_t blocks = num_out_blocks(a.out_features);
#if defined(INFOPT_AMX)
  if (amx_permitted() && a.num_rows > kBf16Rows) {
    const TiledRows rows = tile_rows(a, x, stride);
    return parallel_ranges(blocks, a.num_threads,
                           [&](int64_t begin, int64_t end) { amx_blocks(a, rows, begin, end); });
  }
#endif
  parallel_ranges(blocks, a.num_threads,
                  [&](int64_t begin, int64_t end) { vector_blocks(a, x, stride, begin, end); });
}

void multiply_f32(const LinearArgs& a) {
  parallel_ranges(num_out_blocks(a.out_features), a.num_threads,
                  [&](int64_t begin, int64_t end) { float_blocks(a, begin, end); });
}

}  // namespace

void linear_fp8(const Fp8Args& args) {
  if (args.linear.num_rows == 0) return;
  if (args.is_float) {
    multiply_f32(args.round_rows ? rounded_rows<float>(args) : args.linear);
  } else {
    multiply_bf16(args.round_rows ? rounded_rows<bf16>(args) : args.linear);
  }
}

}  // namespace infopt
