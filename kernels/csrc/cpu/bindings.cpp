// Python bindings: check the tensors, fill the argument structs, call the kernels.
#include <ATen/Functions.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "checks.h"
#include "fused.h"
#include "linear.h"
#include "parallel.h"
#include "quantized.h"

namespace infopt {
namespace {

PageView view_of(const Tensor& pages, const Tensor& like, const char* name) {
  check_dtype(pages, like.scalar_type(), name);
  check_dim(pages, 4, name);
  TORCH_CHECK_VALUE(pages.stride(3) == 1 && pages.stride(2) == pages.size(3), name,
                    " must hold each block of a head contiguously, got strides ", pages.strides());
  return {pages.data_ptr(), pages.stride(0), pages.stride(1)};
}

void check_same_pages(const Tensor& keys, const Tensor& values) {
  check_shape(values, keys.sizes(), "values");
  TORCH_CHECK_VALUE(keys.size(3) > 0 && keys.size(3) % 16 == 0,
                    "head_dim must be a multiple of 16, got ", keys.size(3));
}

// Page ids of the tokens that are read must exist; the null page 0 stands in behind the table.
void check_table(const int32_t* table, int64_t first, int64_t last, int64_t width,
                 int64_t num_pages) {
  for (int64_t i = first; i <= std::min(last, width - 1); ++i) {
    TORCH_CHECK_INDEX(table[i] >= 0 && table[i] < num_pages, "block_tables holds page ", table[i],
                      " but there are ", num_pages);
  }
}

void check_tables(const AttentionArgs& a, int64_t num_tokens, int64_t num_pages) {
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
    check(a.num_decodes + i, begin, end);
    next = end;
  }
  TORCH_CHECK_VALUE(next == num_tokens, "the sequences hold ", next, " tokens, q has ", num_tokens);
}

Tensor attention(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& positions,
                 const Tensor& block_tables, const std::vector<int64_t>& prefill_starts,
                 int64_t num_decodes, int64_t window, double scale, double softcap) {
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
  Tensor out = at::empty({q.size(0), q.size(1) * q.size(2)}, q.options());
  a.out = out.data_ptr();
  const ReleaseGilFor release(q.numel() * 256);
  for_dtype(q.scalar_type(), [&](auto type) { paged_attention<decltype(type)>(a); });
  return out;
}

std::pair<Tensor, Tensor> add_rms_norm_op(const Tensor& x, const std::optional<Tensor>& residual,
                                          const Tensor& weight, double eps) {
  check_compute_dtype(x, "x");
  check_rows(x, "x");
  check_dtype(weight, at::kFloat, "weight");
  check_shape(weight, {x.size(1)}, "weight");
  check_contiguous(weight, "weight");
  AddRmsNormArgs a = {};
  Tensor normed = at::empty(x.sizes(), x.options());
  Tensor total = x;
  if (residual.has_value()) {
    check_dtype(*residual, x.scalar_type(), "residual");
    check_shape(*residual, x.sizes(), "residual");
    check_contiguous(*residual, "residual");
    total = at::empty(x.sizes(), x.options());
    a.residual = residual->const_data_ptr();
    a.total = total.data_ptr();
  }
  a.x = x.const_data_ptr();
  a.weight = weight.const_data_ptr<float>();
  a.normed = normed.data_ptr();
  a.num_rows = x.size(0);
  a.size = x.size(1);
  a.x_stride = x.stride(0);
  a.eps = static_cast<float>(eps);
  a.num_threads = at::get_num_threads();
  const ReleaseGilFor release(x.numel());
  for_dtype(x.scalar_type(), [&](auto type) { add_rms_norm<decltype(type)>(a); });
  return {normed, total};
}

Tensor gated_activation_op(const Tensor& gate_up, const std::string& kind) {
  check_compute_dtype(gate_up, "gate_up");
  check_rows(gate_up, "gate_up");
  TORCH_CHECK_VALUE(gate_up.size(1) % 2 == 0, "gate_up must have an even width, got ",
                    gate_up.size(1));
  TORCH_CHECK_VALUE(kind == "silu" || kind == "gelu_tanh", "kind must be silu or gelu_tanh, got ",
                    kind);
  GatedActivationArgs a = {};
  a.num_rows = gate_up.size(0);
  a.size = gate_up.size(1) / 2;
  Tensor out = at::empty({a.num_rows, a.size}, gate_up.options());
  a.gate_up = gate_up.const_data_ptr();
  a.out = out.data_ptr();
  a.stride = gate_up.stride(0);
  a.kind = kind == "silu" ? Activation::kSilu : Activation::kGeluTanh;
  a.num_threads = at::get_num_threads();
  const ReleaseGilFor release(out.numel() * 4);
  for_dtype(gate_up.scalar_type(), [&](auto type) { gated_activation<decltype(type)>(a); });
  return out;
}

void check_slots(const Tensor& slots, int64_t num_tokens, int64_t num_slots) {
  check_dtype(slots, at::kLong, "slots");
  check_shape(slots, {num_tokens}, "slots");
  check_contiguous(slots, "slots");
  const int64_t* slot = slots.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < num_tokens; ++t) {
    TORCH_CHECK_INDEX(slot[t] >= 0 && slot[t] < num_slots, "slot ", slot[t], " but the pages hold ",
                      num_slots, " tokens");
  }
}

const float* norm_weight(const std::optional<Tensor>& weight, int64_t head_dim, const char* name) {
  if (!weight.has_value()) return nullptr;
  check_dtype(*weight, at::kFloat, name);
  check_shape(*weight, {head_dim}, name);
  check_contiguous(*weight, name);
  return weight->const_data_ptr<float>();
}

const void* rotation(const Tensor& table, const Tensor& qkv, int64_t half, const char* name) {
  check_dtype(table, qkv.scalar_type(), name);
  check_shape(table, {qkv.size(0), half}, name);
  check_contiguous(table, name);
  return table.const_data_ptr();
}

Tensor rotary_and_write_op(const Tensor& qkv, const Tensor& cos, const Tensor& sin,
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

Tensor pack_linear(const Tensor& weight) {
  check_compute_dtype(weight, "weight");
  check_dim(weight, 2, "weight");
  check_contiguous(weight, "weight");
  const bool is_float = weight.scalar_type() == at::kFloat;
  const int64_t out_features = weight.size(0), in_features = weight.size(1);
  TORCH_CHECK_VALUE(out_features > 0 && in_features > 0, "weight is empty");
  const int64_t size = is_float ? packed_size_f32(out_features, in_features)
                                : packed_size_bf16(out_features, in_features);
  Tensor packed = at::empty({size}, weight.options());
  const PackArgs args = {weight.const_data_ptr(), packed.data_ptr(), out_features, in_features,
                         at::get_num_threads()};
  is_float ? pack_f32(args) : pack_bf16(args);
  return packed;
}

// Makes y and fills in what all products have in common.
Tensor fill_linear(const Tensor& x, const std::optional<Tensor>& bias, int64_t out_features,
                   int64_t packed_size, LinearArgs& a) {
  if (bias.has_value()) {
    check_dtype(*bias, x.scalar_type(), "bias");
    check_shape(*bias, {out_features}, "bias");
    check_contiguous(*bias, "bias");
    a.bias = bias->const_data_ptr();
  }
  a.num_rows = x.size(0);
  a.in_features = x.size(1);
  a.out_features = out_features;
  Tensor y = at::empty({a.num_rows, out_features}, x.options());
  a.x = x.const_data_ptr();
  a.y = y.data_ptr();
  a.x_stride = x.stride(0);
  a.num_threads = threads_for(a.num_rows * packed_size, 1 << 16, at::get_num_threads());
  return y;
}

// Padding hides a wrong width from the size of the packed weight, so both are checked.
void check_width(const Tensor& x, int64_t in_features) {
  check_compute_dtype(x, "x");
  check_rows(x, "x");
  TORCH_CHECK_VALUE(x.size(1) == in_features, "x has width ", x.size(1), ", the weight ",
                    in_features);
}

Tensor linear(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias,
              int64_t out_features, int64_t in_features) {
  check_width(x, in_features);
  check_dtype(packed, x.scalar_type(), "packed");
  const bool is_float = x.scalar_type() == at::kFloat;
  check_shape(packed, {is_float ? packed_size_f32(out_features, x.size(1))
                                : packed_size_bf16(out_features, x.size(1))}, "packed");
  LinearArgs a = {};
  Tensor y = fill_linear(x, bias, out_features, packed.numel(), a);
  a.packed = packed.const_data_ptr();
  const ReleaseGilFor release(a.num_rows * packed.numel());
  is_float ? linear_f32(a) : linear_bf16(a);
  return y;
}

void check_code_bits(int64_t code_bits) {
  TORCH_CHECK_VALUE(code_bits == 4 || code_bits == 8, "code_bits must be 4 or 8, got ", code_bits);
}

Tensor pack_codes_op(const Tensor& codes, int64_t code_bits) {
  check_dtype(codes, at::kByte, "codes");
  check_dim(codes, 2, "codes");
  check_contiguous(codes, "codes");
  check_code_bits(code_bits);
  const int64_t out_features = codes.size(0), in_features = codes.size(1);
  TORCH_CHECK_VALUE(out_features > 0 && in_features > 0, "codes is empty");
  Tensor packed = at::empty({packed_code_bytes(out_features, in_features, code_bits)},
                            codes.options());
  pack_codes({codes.const_data_ptr<uint8_t>(), packed.data_ptr<uint8_t>(), out_features,
              in_features, static_cast<int>(code_bits), at::get_num_threads()});
  return packed;
}

Tensor linear_quantized_op(const Tensor& x, const Tensor& packed, const Tensor& scales,
                           const std::optional<Tensor>& bias, int64_t out_features,
                           int64_t in_features, int64_t group_size, int64_t code_bits,
                           int64_t activation_bits) {
  check_width(x, in_features);
  check_dtype(packed, at::kByte, "packed");
  check_code_bits(code_bits);
  TORCH_CHECK_VALUE(activation_bits == 8 || activation_bits == 16,
                    "activation_bits must be 8 or 16, got ", activation_bits);
  TORCH_CHECK_VALUE(group_size > 0 && group_size % kMinGroup == 0, "group_size must be a multiple ",
                    "of ", kMinGroup, ", got ", group_size);
  check_shape(packed, {packed_code_bytes(out_features, x.size(1), code_bits)}, "packed");
  check_cpu(scales, "scales");
  check_contiguous(scales, "scales");
  TORCH_CHECK_TYPE(scales.scalar_type() == at::kFloat || scales.scalar_type() == at::kHalf,
                   "scales must be float32 or float16, got ", scales.scalar_type());
  check_shape(scales, {num_out_blocks(out_features), num_groups(x.size(1), group_size), 2,
                       kOutBlock}, "scales");
  QuantizedArgs a = {};
  Tensor y = fill_linear(x, bias, out_features, packed.numel(), a.linear);
  a.linear.packed = packed.const_data_ptr();
  a.scales = scales.const_data_ptr();
  a.group_size = group_size;
  a.code_bits = static_cast<int>(code_bits);
  a.activation_bits = static_cast<int>(activation_bits);
  a.half_scales = scales.scalar_type() == at::kHalf;
  a.is_float = x.scalar_type() == at::kFloat;
  const ReleaseGilFor release(a.linear.num_rows * packed.numel());
  linear_quantized(a);
  return y;
}

}  // namespace
}  // namespace infopt

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("attention", &infopt::attention);
  m.def("add_rms_norm", &infopt::add_rms_norm_op);
  m.def("gated_activation", &infopt::gated_activation_op);
  m.def("rotary_and_write", &infopt::rotary_and_write_op);
  m.def("pack_linear", &infopt::pack_linear);
  m.def("linear", &infopt::linear);
  m.def("pack_codes", &infopt::pack_codes_op);
  m.def("linear_quantized", &infopt::linear_quantized_op);
  m.def("amx_available", &infopt::amx_available);
}
