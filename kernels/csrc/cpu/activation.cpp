// Gated activation of the MLP: act(gate) * up (arXiv 2002.05202).
#include "fused.h"
#include "parallel.h"
#include "rows.h"
#include "vec_math.h"

namespace infopt {
namespace {

constexpr int64_t kElementsPerThread = 1 << 14;

struct Silu {
  Vec operator()(Vec x) const { return x * sigmoid(x); }
};

// 0.5 x (1 + tanh(u)) is x sigmoid(2 u): no cancellation for negative x.
struct GeluTanh {
  Vec operator()(Vec x) const {
    const Vec cubic = fma(x * x * x, Vec::set(0.044715f), x);
    return x * sigmoid(cubic * Vec::set(1.5957691216057308f));  // 2 sqrt(2 / pi)
  }
};

template <typename T, typename Act>
void activate_rows(const GatedActivationArgs& a, int64_t begin, int64_t end) {
  const Act act;
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = static_cast<const T*>(a.gate_up) + row * a.stride;
    const T* up = gate + a.size;
    T* out = static_cast<T*>(a.out) + row * a.size;
    for_each_vec(a.size, [&](int64_t i, int n) {
      store(act(load(gate + i, n)) * load(up + i, n), out + i, n);
    });
  }
}

}  // namespace

template <typename T>
void gated_activation(const GatedActivationArgs& args) {
  const int threads = threads_for(args.num_rows * args.size, kElementsPerThread, args.num_threads);
  parallel_ranges(args.num_rows, threads, [&](int64_t begin, int64_t end) {
    if (args.kind == Activation::kSilu) {
      activate_rows<T, Silu>(args, begin, end);
    } else {
      activate_rows<T, GeluTanh>(args, begin, end);
    }
  });
}

template void gated_activation<float>(const GatedActivationArgs&);
template void gated_activation<bf16>(const GatedActivationArgs&);

}  // namespace infopt
