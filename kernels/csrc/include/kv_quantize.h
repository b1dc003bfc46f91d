// Quantization of row groups of the KV cache out of full-precision pages.
#pragma once

#include <cstdint>

#include "attention.h"

namespace infopt {

// Job i writes quantized page jobs[i * (1 + pages)] from the `pages` full-precision pages after it.
struct QuantizePagesArgs {
  PageView keys;
  PageView values;
  QuantizedView quantized;
  const int64_t* jobs;
  int64_t num_jobs;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t block_size;
  int num_threads;
};

template <typename T>
void quantize_pages(const QuantizePagesArgs& args);

}  // namespace infopt
