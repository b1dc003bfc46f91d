// Checks and calls of the ops on pages: attention, rotation with page write.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "attention.h"
#include "attention_tile.h"
#include "checks.h"
#include "fused.h"
#include "kv_quantize.h"

namespace infopt {

inline PageView view_of(const Tensor& pages, const Tensor& like, const char* name) {
  check_dtype(pages, like.scalar_type(), name);
  check_dim(pages, 4, name);
  TORCH_CHECK_VALUE(pages.stride(3) == 1 && pages.stride(2) == pages.size(3), name,
                    " must hold each block of a head contiguously, got strides ", pages.strides());
  return {pages.data_ptr(), pages.stride(0), pages.stride(1)};
}

inline void check_same_pages(const Tensor& keys, const Tensor& values) {
  check_shape(values, keys.sizes(), "values");
  TORCH_CHECK_VALUE(keys.size(3) > 0 && keys.size(3) % 16 == 0,
                    "head_dim must be a multiple of 16, got ", keys.size(3));
}

// Page ids of the tokens that are read must exist; the null page 0 stands in behind the table.
inline void check_table(const int32_t* table, int64_t first, int64_t last, int64_t width,
                        int64_t num_pages) {
  for (int64_t i = first; i <= std::min(last, width - 1); ++i) {
    TORCH_CHECK_INDEX(table[i] >= 0 && table[i] < num_pages, "block_tables holds page ", table[i],
                      " but there are ", num_pages);
  }
}

// Quantized pages of a layer as Python hands them over: bytes, kind, rows of a page, residual.
using QuantizedPages = std::tuple<Tensor, int64_t, int64_t, int64_t>;

inline QuantizedView quantized_view(const QuantizedPages& pages, const Tensor& keys) {
  const auto& [data, kind, group, residual] = pages;
  check_dtype(data, at::kByte, "quantized");
  check_dim(data, 3, "quantized");
  TORCH_CHECK_VALUE(kind >= 0 && kind < kCodeKinds, "there is no kind of code ", kind);
  TORCH_CHECK_VALUE(group >= 16 && group <= kSplit && kSplit % group == 0,
                    "a quantized page holds 16, 32, 64 or 128 rows, got ", group);
  const int64_t size = keys.size(2);
  TORCH_CHECK_VALUE(group % size == 0 && residual >= 0 && residual % size == 0, "group ", group,
                    " and residual ", residual, " must be multiples of pages of ", size);
  const auto code = static_cast<CodeKind>(kind);
  check_shape(data, {data.size(0), keys.size(1), quantized_head_bytes(code, group, keys.size(3))},
              "quantized");
  TORCH_CHECK_VALUE(data.stride(2) == 1, "quantized must have contiguous heads, got strides ",
                    data.strides());
  return {data.const_data_ptr<uint8_t>(), data.stride(0), data.stride(1), code, group, residual};
}

// Pages of the rows that some query of a sequence reads quantized must exist.
inline void check_quantized_tables(const Tensor& tables, int64_t num_seqs, int64_t num_pages) {
  check_dtype(tables, at::kInt, "quantized tables");
  check_rows(tables, "quantized tables");
  TORCH_CHECK_VALUE(tables.size(0) >= num_seqs, "quantized tables have ", tables.size(0),
                    " rows for ", num_seqs, " sequences");
  for (int64_t i = 0; i < num_seqs; ++i) {
    const int32_t* table = tables.const_data_ptr<int32_t>() + i * tables.stride(0);
    check_table(table, 0, tables.size(1) - 1, tables.size(1), num_pages);
  }
}

inline void check_jobs(const Tensor& jobs, int64_t width, int64_t num_quantized,
                       int64_t num_pages) {
  check_dtype(jobs, at::kLong, "jobs");
  check_shape(jobs, {jobs.size(0), width}, "jobs");
  check_contiguous(jobs, "jobs");
  const int64_t* job = jobs.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < jobs.numel(); ++i) {
    const int64_t end = i % width == 0 ? num_quantized : num_pages;
    TORCH_CHECK_INDEX(job[i] >= 0 && job[i] < end, "jobs hold page ", job[i], " but there are ",
                      end);
  }
}

inline void quantize_pages_op(const Tensor& keys, const Tensor& values,
                              const QuantizedPages& quantized, const Tensor& jobs) {
  check_compute_dtype(keys, "keys");
  QuantizePagesArgs a = {};
  a.keys = view_of(keys, keys, "keys");
  a.values = view_of(values, keys, "values");
  check_same_pages(keys, values);
  a.quantized = quantized_view(quantized, keys);
  const Tensor& data = std::get<0>(quantized);
  check_jobs(jobs, 1 + a.quantized.group / keys.size(2), data.size(0), keys.size(0));
  a.jobs = jobs.const_data_ptr<int64_t>();
  a.num_jobs = jobs.size(0);
  a.num_kv_heads = keys.size(1);
  a.head_dim = keys.size(3);
  a.block_size = keys.size(2);
  a.num_threads = at::get_num_threads();
  const ReleaseGilFor release(a.num_jobs * a.quantized.group * a.num_kv_heads * a.head_dim);
  for_dtype(keys.scalar_type(), [&](auto type) { quantize_pages<decltype(type)>(a); });
}

inline void check_tables(const AttentionArgs& a, int64_t num_tokens, int64_t num_pages) {
  const auto check = [&](int64_t sequence, int64_t begin, int64_t end) {
    int64_t low = INT64_MAX, high = 0;
    for (int64_t t = begin; t < end; ++t) {
      low = std::min(low, a.positions[t]);
      high = std::max(high, a.positions[t]);
    }
    TORCH_CHECK_INDEX(low >= 0, "positions must not be negative, got ", low);
    const int64_t oldest = a.window > 0 ? std::max<int64_t>(0, low + 1 - a.window) : 0;
    check_table(a.block_tables + sequence * a.table_stride, oldest / a.block_size,
                high / a.block_size, a.table_width, num_pages);
  };
  for (int64_t i = 0; i < a.num_decodes; ++i) check(i, i, i + 1);
  int64_t next = a.num_decodes;
  for (int64_t i = 0; i < a.num_prefills; ++i) {
    const int64_t begin = a.prefill_starts[i], end = a.prefill_starts[i + 1];
    TORCH_CHECK_VALUE(begin == next && end > begin, "prefill_starts must rise from num_decodes");
    TORCH_CHECK_VALUE(end <= num_tokens, "the sequences hold ", end, " tokens, q has ",
                      num_tokens);
    check(a.num_decodes + i, begin, end);
    next = end;
  }
  TORCH_CHECK_VALUE(next == num_tokens, "the sequences hold ", next, " tokens, q has ", num_tokens);
}

inline Tensor attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                        const Tensor& positions, const Tensor& block_tables,
                        const std::vector<int64_t>& prefill_starts, int64_t num_decodes,
                        int64_t window, double scale, double softcap,
                        const std::optional<QuantizedPages>& quantized,
                        const std::optional<Tensor>& quantized_tables) {
  check_compute_dtype(q, "q");
  check_dim(q, 3, "q");
  check_contiguous(q, "q");
  AttentionArgs a = {};
  a.keys = view_of(keys, q, "keys");
  a.values = view_of(values, q, "values");
  check_same_pages(keys, values);
  TORCH_CHECK_VALUE(q.size(2) == keys.size(3), "q has head_dim ", q.size(2), ", the pages ",
                    keys.size(3));
  TORCH_CHECK_VALUE(keys.size(1) > 0 && q.size(1) % keys.size(1) == 0, q.size(1),
                    " query heads cannot share ", keys.size(1), " key heads");
  check_dtype(positions, at::kLong, "positions");
  check_shape(positions, {q.size(0)}, "positions");
  check_contiguous(positions, "positions");
  check_dtype(block_tables, at::kInt, "block_tables");
  check_rows(block_tables, "block_tables");
  TORCH_CHECK_VALUE(window >= 0 && num_decodes >= 0, "window and num_decodes must not be negative");
  a.num_decodes = num_decodes;
  a.num_prefills = prefill_starts.empty() ? 0 : static_cast<int64_t>(prefill_starts.size()) - 1;
  TORCH_CHECK_VALUE(block_tables.size(0) >= a.num_decodes + a.num_prefills, "block_tables has ",
                    block_tables.size(0), " rows for ", a.num_decodes + a.num_prefills,
                    " sequences");
  TORCH_CHECK_VALUE(num_decodes <= q.size(0), num_decodes, " decodes but ", q.size(0), " tokens");
  a.q = q.const_data_ptr();
  a.positions = positions.const_data_ptr<int64_t>();
  a.block_tables = block_tables.const_data_ptr<int32_t>();
  a.prefill_starts = prefill_starts.data();
  a.table_stride = block_tables.stride(0);
  a.table_width = block_tables.size(1);
  a.num_heads = q.size(1);
  a.num_kv_heads = keys.size(1);
  a.head_dim = q.size(2);
  a.block_size = keys.size(2);
  a.window = window;
  a.scale = static_cast<float>(scale);
  a.softcap = static_cast<float>(softcap);
  a.num_threads = at::get_num_threads();
  check_tables(a, q.size(0), keys.size(0));
  TORCH_CHECK_VALUE(quantized.has_value() == quantized_tables.has_value(),
                    "quantized pages and their tables come together");
  if (quantized.has_value()) {
    a.quantized = quantized_view(*quantized, keys);
    check_quantized_tables(*quantized_tables, a.num_decodes + a.num_prefills,
                           std::get<0>(*quantized).size(0));
    a.quantized_tables = quantized_tables->const_data_ptr<int32_t>();
    a.quantized_stride = quantized_tables->stride(0);
    a.quantized_width = quantized_tables->size(1);
  }
  Tensor out = at::empty({q.size(0), q.size(1) * q.size(2)}, q.options());
  a.out = out.data_ptr();
  const ReleaseGilFor release(q.numel() * 256);
  for_dtype(q.scalar_type(), [&](auto type) { paged_attention<decltype(type)>(a); });
  return out;
}

inline void check_slot_range(const int64_t* slots, int64_t num_tokens, int64_t num_slots) {
  for (int64_t t = 0; t < num_tokens; ++t) {
    TORCH_CHECK_INDEX(slots[t] >= 0 && slots[t] < num_slots, "slot ", slots[t],
                      " but the pages hold ", num_slots, " tokens");
  }
}

inline void check_slots(const Tensor& slots, int64_t num_tokens, int64_t num_slots) {
  check_dtype(slots, at::kLong, "slots");
  check_shape(slots, {num_tokens}, "slots");
  check_contiguous(slots, "slots");
  check_slot_range(slots.const_data_ptr<int64_t>(), num_tokens, num_slots);
}

inline const float* norm_weight(const std::optional<Tensor>& weight, int64_t head_dim,
                                const char* name) {
  if (!weight.has_value()) return nullptr;
  check_dtype(*weight, at::kFloat, name);
  check_shape(*weight, {head_dim}, name);
  check_contiguous(*weight, name);
  return weight->const_data_ptr<float>();
}

inline const void* rotation(const Tensor& table, const Tensor& qkv, int64_t half,
                            const char* name) {
  check_dtype(table, qkv.scalar_type(), name);
  check_shape(table, {qkv.size(0), half}, name);
  check_contiguous(table, name);
  return table.const_data_ptr();
}

inline Tensor rotary_and_write_op(const Tensor& qkv, const Tensor& cos, const Tensor& sin,
                                  const Tensor& keys, const Tensor& values, const Tensor& slots,
                                  const std::optional<Tensor>& query_weight,
                                  const std::optional<Tensor>& key_weight, double eps) {
  check_compute_dtype(qkv, "qkv");
  check_rows(qkv, "qkv");
  RotaryArgs a = {};
  a.keys = view_of(keys, qkv, "keys");
  a.values = view_of(values, qkv, "values");
  check_same_pages(keys, values);
  a.num_tokens = qkv.size(0);
  a.num_kv_heads = keys.size(1);
  a.block_size = keys.size(2);
  a.head_dim = keys.size(3);
  a.num_heads = qkv.size(1) / a.head_dim - 2 * a.num_kv_heads;
  TORCH_CHECK_VALUE(qkv.size(1) % a.head_dim == 0 && a.num_heads >= 0, "qkv of width ", qkv.size(1),
                    " does not hold queries, ", a.num_kv_heads, " keys and values of head_dim ",
                    a.head_dim);
  a.cos = rotation(cos, qkv, a.head_dim / 2, "cos");
  a.sin = rotation(sin, qkv, a.head_dim / 2, "sin");
  check_slots(slots, a.num_tokens, keys.size(0) * a.block_size);
  TORCH_CHECK_VALUE(query_weight.has_value() == key_weight.has_value(),
                    "queries and keys are normed together or not at all");
  a.query_weight = norm_weight(query_weight, a.head_dim, "query_weight");
  a.key_weight = norm_weight(key_weight, a.head_dim, "key_weight");
  Tensor q = at::empty({a.num_tokens, a.num_heads, a.head_dim}, qkv.options());
  a.qkv = qkv.const_data_ptr();
  a.q = q.data_ptr();
  a.slots = slots.const_data_ptr<int64_t>();
  a.qkv_stride = qkv.stride(0);
  a.eps = static_cast<float>(eps);
  a.num_threads = at::get_num_threads();
  const ReleaseGilFor release(qkv.numel());
  for_dtype(qkv.scalar_type(), [&](auto type) { rotary_and_write<decltype(type)>(a); });
  return q;
}

}  // namespace infopt
