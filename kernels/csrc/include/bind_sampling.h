// Checks and call of the draw.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "checks.h"
#include "sampling.h"

namespace infopt {

inline void check_draw(const DrawRow& row) {
  TORCH_CHECK_VALUE(row.temperature >= 0, "temperature must not be negative, got ",
                    row.temperature);
  TORCH_CHECK_VALUE(row.min_p >= 0 && row.min_p <= 1, "min_p must be in [0, 1], got ", row.min_p);
  TORCH_CHECK_VALUE(row.top_p > 0 && row.top_p <= 1, "top_p must be in (0, 1], got ", row.top_p);
  TORCH_CHECK_VALUE(row.number >= 0 && row.number < 1, "number must be in [0, 1), got ",
                    row.number);
}

inline std::vector<int64_t> draw_tokens_op(const Tensor& logits,
                                           const std::vector<double>& temperature,
                                           const std::vector<double>& min_p,
                                           const std::vector<int64_t>& top_k,
                                           const std::vector<double>& top_p,
                                           const std::vector<double>& number) {
  check_dtype(logits, at::kFloat, "logits");
  check_rows(logits, "logits");
  TORCH_CHECK_VALUE(logits.size(1) > 0 && logits.size(1) <= kMaxVocab, "logits must have 1 to ",
                    kMaxVocab, " columns, got ", logits.size(1));
  const auto count = static_cast<size_t>(logits.size(0));
  TORCH_CHECK_VALUE(temperature.size() == count && min_p.size() == count && top_k.size() == count &&
                        top_p.size() == count && number.size() == count,
                    "each of the ", count, " rows needs its own parameters");
  std::vector<DrawRow> rows(count);
  for (size_t i = 0; i < count; ++i) {
    rows[i] = {static_cast<float>(temperature[i]), min_p[i], top_k[i], top_p[i], number[i]};
    check_draw(rows[i]);
    // However small it is, the best token keeps a weight of 1.
    rows[i].temperature = std::max(rows[i].temperature, std::numeric_limits<float>::min());
  }
  std::vector<int64_t> tokens(count);
  DrawArgs args = {logits.const_data_ptr<float>(),
                   rows.data(),
                   tokens.data(),
                   logits.size(0),
                   logits.size(1),
                   logits.stride(0),
                   at::get_num_threads()};
  const ReleaseGilFor release(logits.numel());
  draw_tokens(args);
  return tokens;
}

}  // namespace infopt
