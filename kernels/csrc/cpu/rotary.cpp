// Norm and rotation of queries and keys; keys and values go straight into their pages.
//
// Rotate-half form (arXiv 2104.09864): the halves [a, b] of a head become
// [a cos - b sin, b cos + a sin]. Products are rounded before they are added, as in the reference.
#include <algorithm>

#include "fused.h"
#include "parallel.h"
#include "rows.h"

namespace infopt {
namespace {

constexpr int64_t kElementsPerThread = 1 << 15;

template <typename T>
void rotate_head(const T* x, const float* weight, float scale, const T* cos, const T* sin,
                 int64_t dim, T* out) {
  const int64_t half = dim / 2;
  for_each_vec(half, [&](int64_t i, int n) {
    Vec a = load(x + i, n), b = load(x + half + i, n);
    if (weight != nullptr) {
      a = a * Vec::set(scale) * load(weight + i, n);
      b = b * Vec::set(scale) * load(weight + half + i, n);
    }
    const Vec c = load(cos + i, n), s = load(sin + i, n);
    store(a * c - b * s, out + i, n);
    store(b * c + a * s, out + half + i, n);
  });
}

template <typename T>
float head_scale(const T* x, int64_t dim, float eps) {
  Vec squares = Vec::zero();
  for (int64_t i = 0; i < dim; i += Vec::width) {
    const Vec value = Vec::load(x + i);
    squares = fma(value, value, squares);
  }
  return inverse_rms(squares, dim, eps);
}

template <typename T>
class Rotary {
 public:
  explicit Rotary(const RotaryArgs& args) : a_(args) {}

  void token(int64_t t) const {
    const int64_t dim = a_.head_dim;
    const T* x = static_cast<const T*>(a_.qkv) + t * a_.qkv_stride;
    T* q = static_cast<T*>(a_.q) + t * a_.num_heads * dim;
    for (int64_t h = 0; h < a_.num_heads; ++h, x += dim) {
      rotate(t, x, a_.query_weight, q + h * dim);
    }
    for (int64_t h = 0; h < a_.num_kv_heads; ++h, x += dim) {
      rotate(t, x, a_.key_weight, row(a_.keys, t, h));
    }
    for (int64_t h = 0; h < a_.num_kv_heads; ++h, x += dim) {
      std::copy_n(x, dim, row(a_.values, t, h));
    }
  }

 private:
  const RotaryArgs a_;

  void rotate(int64_t t, const T* x, const float* weight, T* out) const {
    const int64_t half = a_.head_dim / 2;
    const float scale = weight != nullptr ? head_scale(x, a_.head_dim, a_.eps) : 1.0f;
    rotate_head(x, weight, scale, static_cast<const T*>(a_.cos) + t * half,
                static_cast<const T*>(a_.sin) + t * half, a_.head_dim, out);
  }

  T* row(const PageView& view, int64_t t, int64_t head) const {
    const int64_t page = a_.slots[t] / a_.block_size, offset = a_.slots[t] % a_.block_size;
    return static_cast<T*>(const_cast<void*>(view.data)) + page * view.page_stride +
           head * view.head_stride + offset * a_.head_dim;
  }
};

}  // namespace

template <typename T>
void rotary_and_write(const RotaryArgs& args) {
  const int64_t row = (args.num_heads + 2 * args.num_kv_heads) * args.head_dim;
  const int threads = threads_for(args.num_tokens * row, kElementsPerThread, args.num_threads);
  const Rotary<T> rotary(args);
  parallel_ranges(args.num_tokens, threads, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) rotary.token(t);
  });
}

template void rotary_and_write<float>(const RotaryArgs&);
template void rotary_and_write<bf16>(const RotaryArgs&);

}  // namespace infopt
