// Paged causal attention over a mixed batch: arguments and entry points.
#pragma once

#include <cstdint>

#include "kv_codes.h"

namespace infopt {

// Keys or values of one layer, (num_pages, num_kv_heads, block_size, head_dim): a block of one page
// and head is contiguous, pages and heads are strided (in elements).
struct PageView {
  const void* data;
  int64_t page_stride;
  int64_t head_stride;
};

// Quantized pages of one layer, (num_pages, num_kv_heads, bytes of a head): heads are contiguous.
struct QuantizedView {
  const uint8_t* data;  // null: the layer has none
  int64_t page_stride;  // bytes
  int64_t head_stride;
  CodeKind kind;
  int64_t group;     // rows of a page
  int64_t residual;  // newest rows that are read in full precision
};

// Rows of `q` and `out` are tokens; the first `num_decodes` sequences have one token each, then
// sequence num_decodes + i owns tokens prefill_starts[i] .. prefill_starts[i + 1].
struct AttentionArgs {
  const void* q;  // (num_tokens, num_heads, head_dim), contiguous
  PageView keys;
  PageView values;
  void* out;  // (num_tokens, num_heads, head_dim), contiguous
  const int64_t* positions;  // of tokens in their KV group: the rows up to it are seen
  const int32_t* block_tables;
  const int64_t* prefill_starts;
  int64_t table_stride;  // entries between the tables of two sequences
  int64_t table_width;   // pages per table; positions behind it read page 0
  int64_t num_decodes;
  int64_t num_prefills;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t window;  // keys a query sees, itself included; 0: all before it
  float scale;
  float softcap;  // 0: none
  QuantizedView quantized;
  const int32_t* quantized_tables;  // quantized pages by row / group
  int64_t quantized_stride;
  int64_t quantized_width;  // pages per table; rows behind it are read in full precision
  int num_threads;
};

template <typename T>
void paged_attention(const AttentionArgs& args);

}  // namespace infopt
