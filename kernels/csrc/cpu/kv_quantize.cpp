// Quantizes row groups of keys (per channel) and values (per row); see kv_codes.h for the layout.
#include "kv_quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "bits.h"
#include "parallel.h"
#include "scratch.h"

namespace infopt {
namespace {

constexpr float kLargestHalf = 65504.0f;
constexpr int64_t kElementsPerThread = 1 << 14;

// The code of |x| in a small float format: M bits of mantissa, the exponent's bias, no infinities.
// Rounds to nearest even: adding a power of two far above x leaves M bits of mantissa.
template <int M, int Bias>
inline uint32_t small_float(float x, float largest) {
  const float size = std::min(std::fabs(x), largest);
  constexpr uint32_t kExponent = 0x7f800000u, kFirst = (127u + 1 - Bias) << 23;
  const float coarse = from_bits(std::max(bits_of(size) & kExponent, kFirst) + ((23u - M) << 23));
  const float rounded = (size + coarse) - coarse;
  if (bits_of(rounded) < kFirst) {  // a whole number of the smallest step
    return static_cast<uint32_t>(rounded * from_bits((127u + Bias - 1 + M) << 23));
  }
  return (bits_of(rounded) >> (23 - M)) - ((127u - Bias) << M);
}

inline half to_half(float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000u;
  if (std::isnan(x)) return half{static_cast<uint16_t>(sign | 0x7e00u)};
  return half{static_cast<uint16_t>(sign | small_float<10, 15>(x, kLargestHalf))};
}

template <CodeKind K>
inline uint8_t to_float8(float x) {
  const uint32_t sign = bits_of(x) >> 24 & 0x80u;
  if (std::isnan(x)) return static_cast<uint8_t>(sign | 0x7fu);
  const uint32_t size = K == CodeKind::kE4m3 ? small_float<3, 7>(x, 448.0f)
                                             : small_float<2, 15>(x, 57344.0f);
  return static_cast<uint8_t>(sign | size);
}

// Scale and minimum of numbers between low and high, rounded as they are stored.
struct Step {
  half scale, minimum;
  Step(float low, float high, int levels) {
    const float range = high - low;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    scale = to_half(std::isfinite(range) ? range / static_cast<float>(levels) : nan);
    minimum = to_half(std::isfinite(range) ? low : nan);
  }
};

// Lowest and highest; NaN where one is not finite.
struct Bounds {
  Vec low = Vec::set(std::numeric_limits<float>::max());
  Vec negative_high = Vec::set(std::numeric_limits<float>::max());
  Vec poison = Vec::zero();

  void add(Vec x) {
    const Vec minus = Vec::zero() - x;
    low = Vec::zero() - max(minus, Vec::zero() - low);
    negative_high = Vec::zero() - max(x, Vec::zero() - negative_high);
    poison = poison + (x - x);
  }
};

template <CodeKind K>
class RowGroup {
 public:
  static constexpr int kLevels = (1 << code_bits(K)) - 1;

  RowGroup(int64_t rows, int64_t dim) : rows_(rows), dim_(dim) {
    static thread_local Scratch scratch;
    scratch.reserve(Scratch::size_of<float>(rows * dim) + Scratch::size_of<uint8_t>(rows * dim) +
                    2 * Scratch::size_of<float>(dim));
    x_ = scratch.take<float>(rows * dim);
    codes_ = scratch.take<uint8_t>(rows * dim);
    scale_ = scratch.take<float>(dim);
    minimum_ = scratch.take<float>(dim);
  }

  template <typename T>
  void set_row(int64_t row, const T* from) {
    for (int64_t d = 0; d < dim_; d += Vec::width) Vec::load(from + d).store(x_ + row * dim_ + d);
  }

  void code_keys(uint8_t* codes, half* scales, half* minima) {
    if constexpr (is_float_code(K)) {
      code_floats();
    } else {
      channel_steps(scales, minima);
      for (int64_t row = 0; row < rows_; ++row) code_row(row);
    }
    pack_keys(codes);
  }

  void code_values(uint8_t* codes, half* scales, half* minima) {
    if constexpr (is_float_code(K)) {
      code_floats();
    } else {
      for (int64_t row = 0; row < rows_; ++row) {
        row_step(row, scales, minima);
        code_row(row);
      }
    }
    pack_values(codes);
  }

 private:
  static constexpr int kPerByte = 8 / code_bits(K), kPerWord = 4 * kPerByte;
  const int64_t rows_, dim_;
  float* x_;         // rows x dim
  uint8_t* codes_;   // rows x dim
  float* scale_;     // dim: of the row that is coded
  float* minimum_;

  void code_floats() {
    for (int64_t i = 0; i < rows_ * dim_; ++i) codes_[i] = to_float8<K>(x_[i]);
  }

  void channel_steps(half* scales, half* minima) {
    for (int64_t d = 0; d < dim_; d += Vec::width) {
      Bounds bounds;
      for (int64_t row = 0; row < rows_; ++row) bounds.add(Vec::load(x_ + row * dim_ + d));
      alignas(64) float low[Vec::width], high[Vec::width];
      (bounds.low + bounds.poison).store(low);
      (bounds.poison - bounds.negative_high).store(high);
      for (int i = 0; i < Vec::width; ++i) {
        const Step step(low[i], high[i], kLevels);
        scales[d + i] = step.scale;
        minima[d + i] = step.minimum;
        scale_[d + i] = to_float(step.scale);
        minimum_[d + i] = to_float(step.minimum);
      }
    }
  }

  void row_step(int64_t row, half* scales, half* minima) {
    Bounds bounds;
    for (int64_t d = 0; d < dim_; d += Vec::width) bounds.add(Vec::load(x_ + row * dim_ + d));
    const float poison = sum(bounds.poison);
    const float low = -largest(Vec::zero() - bounds.low) + poison;
    const float high = largest(Vec::zero() - bounds.negative_high) + poison;
    const Step step(low, high, kLevels);
    scales[row] = step.scale;
    minima[row] = step.minimum;
    std::fill_n(scale_, dim_, to_float(step.scale));
    std::fill_n(minimum_, dim_, to_float(step.minimum));
  }

  void code_row(int64_t row) {
    const Vec most = Vec::set(static_cast<float>(kLevels));
    for (int64_t d = 0; d < dim_; d += Vec::width) {
      alignas(64) float whole[Vec::width];
      const Vec x = (Vec::load(x_ + row * dim_ + d) - Vec::load(minimum_ + d)) /
                    Vec::load(scale_ + d);
      // NaN (and 0 / 0) become 0: max returns its second argument.
      const Vec bounded = Vec::zero() - max(Vec::zero() - max(x, Vec::zero()), Vec::zero() - most);
      round_even(bounded).store(whole);
      for (int i = 0; i < Vec::width; ++i) {
        codes_[row * dim_ + d + i] =
            scale_[d + i] > 0.0f ? static_cast<uint8_t>(static_cast<int>(whole[i])) : 0;
      }
    }
  }

  void pack_keys(uint8_t* to) const {
    for (int64_t block = 0; block < rows_; block += 16) {
      for (int64_t d = 0; d < dim_; d += kPerWord) {
        for (int64_t row = block; row < block + 16; ++row, to += 4) {
          pack_word(codes_ + row * dim_ + d, 1, to);
        }
      }
    }
  }

  void pack_values(uint8_t* to) const {
    for (int64_t row = 0; row < rows_; row += kPerWord) {
      for (int64_t d = 0; d < dim_; ++d, to += 4) pack_word(codes_ + row * dim_ + d, dim_, to);
    }
  }

  static void pack_word(const uint8_t* codes, int64_t stride, uint8_t* to) {
    for (int b = 0; b < 4; ++b) {
      int byte = 0;
      for (int c = 0; c < kPerByte; ++c) {
        byte |= codes[(4 * c + b) * stride] << (c * code_bits(K));
      }
      to[b] = static_cast<uint8_t>(byte);
    }
  }
};

template <typename T, CodeKind K>
void quantize_head(const QuantizePagesArgs& a, int64_t job, int64_t head) {
  const QuantizedView& view = a.quantized;
  const int64_t pages = view.group / a.block_size;
  const int64_t* ids = a.jobs + job * (1 + pages);
  uint8_t* data = const_cast<uint8_t*>(view.data) + ids[0] * view.page_stride +
                  head * view.head_stride;
  const QuantizedHead at = quantized_head(data, K, view.group, a.head_dim);
  const auto writable = [](const auto* p) { return const_cast<std::decay_t<decltype(*p)>*>(p); };
  RowGroup<K> rows(view.group, a.head_dim);
  for (const bool is_key : {true, false}) {
    const PageView& from = is_key ? a.keys : a.values;
    for (int64_t row = 0; row < view.group; ++row) {
      const T* x = static_cast<const T*>(from.data) +
                   ids[1 + row / a.block_size] * from.page_stride + head * from.head_stride +
                   row % a.block_size * a.head_dim;
      rows.set_row(row, x);
    }
    if (is_key) {
      rows.code_keys(writable(at.keys), writable(at.key_scale), writable(at.key_min));
    } else {
      rows.code_values(writable(at.values), writable(at.value_scale), writable(at.value_min));
    }
  }
}

}  // namespace

template <typename T>
void quantize_pages(const QuantizePagesArgs& args) {
  const int64_t items = args.num_jobs * args.num_kv_heads;
  const int64_t size = 2 * args.quantized.group * args.head_dim;
  const int threads = threads_for(items * size, kElementsPerThread, args.num_threads);
  with_kind(args.quantized.kind, [&](auto kind) {
    parallel_for(items, threads, [&](int64_t i) {
      quantize_head<T, decltype(kind)::value>(args, i / args.num_kv_heads, i % args.num_kv_heads);
    });
  });
}

template void quantize_pages<float>(const QuantizePagesArgs&);
template void quantize_pages<bf16>(const QuantizePagesArgs&);

}  // namespace infopt
