// Attention of many bfloat16 rows over one split with AMX tiles. See attention_tile.h for the
// general arithmetic, which stays in charge of tokens that only some of the rows see.
//
// Scores are rows times pairs of dimensions, weighted values rows times pairs of tokens. Weights
// are rounded to bfloat16 and added up as rounded, so that they still sum to one.
#pragma once

#include "amx.h"

#if defined(INFOPT_AMX)

#include "attention_tile.h"

namespace infopt {

constexpr int kTileDims = 32;  // dimensions (or tokens) that one tile product sums over
constexpr int kTileRows = 16;
constexpr int kTileSize = kTileDims * kTileRows;

// Transposes 16 x 16 words.
inline void transpose_words(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

// Keys of a group as right-hand tiles: pairs of dimensions x 16 keys.
inline void transpose_keys(const bf16* keys, int64_t dim, bf16* tiles) {
  for (int64_t d = 0; d < dim; d += kTileDims, tiles += kTileSize) {
    __m512i r[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(keys + i * dim + d);
    transpose_words(r);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tiles + i * kTileDims, r[i]);
  }
}

// Values of 32 tokens as right-hand tiles: pairs of tokens x 16 dimensions. Tokens outside the
// range become zeros, whatever memory holds. Of 32 dimensions the first tile has the lower half of
// every eight, the second the upper half, as the unpack instructions leave them.
inline void pair_values(const SplitPointers<bf16>& at, int first, Range range, int64_t dim,
                        bf16* tiles) {
  const auto token = [&](int j, int64_t d) {
    if (j < range.lo || j >= range.hi) return _mm512_setzero_si512();
    return _mm512_loadu_si512(at.values[j / kGroup] + j % kGroup * dim + d);
  };
  for (int pair = 0; pair < kTileRows; ++pair) {
    for (int64_t d = 0; d < dim; d += kTileDims) {
      const __m512i even = token(first + 2 * pair, d), odd = token(first + 2 * pair + 1, d);
      bf16* to = tiles + d * 2 * kTileRows + pair * kTileDims;
      _mm512_storeu_si512(to, _mm512_unpacklo_epi16(even, odd));
      _mm512_storeu_si512(to + kTileSize, _mm512_unpackhi_epi16(even, odd));
    }
  }
}

// Adds two tiles of sums to 32 dimensions in their right order.
inline void add_paired(const float* low, const float* high, float* out) {
  const __m512 a = _mm512_loadu_ps(low), b = _mm512_loadu_ps(high);
  const __m512 first = _mm512_shuffle_f32x4(a, b, 0x44), last = _mm512_shuffle_f32x4(a, b, 0xee);
  const Vec ordered[2] = {{_mm512_shuffle_f32x4(first, first, 0xd8)},
                          {_mm512_shuffle_f32x4(last, last, 0xd8)}};
  for (int i = 0; i < 2; ++i) {
    (Vec::load(out + i * 16) + ordered[i]).store(out + i * 16);
  }
}

// All tiles full: 16 rows of 64 bytes.
inline void configure_full_tiles() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.set(tile, 16, 64);
  load_config(config);
}

// Scores of 16 or 32 rows with one or two groups whose keys are transposed.
inline void score_tiles(const bf16* queries, bool two_rows, int64_t dim, const bf16* keys,
                        bool two_groups, float* scores) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int64_t query_bytes = dim * sizeof(bf16), other = kGroup * dim;
  for (int64_t d = 0; d < dim; d += kTileDims) {
    _tile_loadd(4, queries + d, query_bytes);
    _tile_loadd(6, keys + d * kGroup, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (two_rows) {
      _tile_loadd(5, queries + kTileRows * dim + d, query_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (!two_groups) continue;
    _tile_loadd(7, keys + other + d * kGroup, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (two_rows) _tile_dpbf16ps(3, 5, 7);
  }
  constexpr int64_t score_bytes = kSplit * sizeof(float);
  _tile_stored(0, scores, score_bytes);
  if (two_groups) _tile_stored(1, scores + kGroup, score_bytes);
  if (!two_rows) return;
  _tile_stored(2, scores + kTileRows * kSplit, score_bytes);
  if (two_groups) _tile_stored(3, scores + kTileRows * kSplit + kGroup, score_bytes);
}

// e^x for x <= 0 to 12 bits: what is left of it after rounding to bfloat16.
inline Vec exp_coarse(Vec x) {
  const Vec t = max(Vec::set(-160.0f), x * Vec::set(1.44269504088896341f));
  const Vec n = round_even(t), r = t - n;
  Vec p = Vec::set(0.0096181291f);
  p = fma(p, r, Vec::set(0.0555041087f));
  p = fma(p, r, Vec::set(0.2402265070f));
  p = fma(p, r, Vec::set(0.6931471806f));
  p = fma(p, r, Vec::set(1.0f));
  return scale_by_power(p, n);
}

// Weights of one row as bfloat16 into `weights` where all rows see a token (zeros beside it up to
// whole tiles), and the same rounded values into `scores`.
inline Partial round_weights(float* scores, Range range, Range common, float scale, float softcap,
                             bf16* weights) {
  const float maximum = scale_scores(scores, range, scale, softcap);
  Vec total = Vec::zero();
  for (int j = range.lo / 16 * 16; j < range.hi; j += 16) {
    const __m256i half = exp_coarse(Vec::load(scores + j) - Vec::set(maximum)).narrow();
    const Vec weight = Vec::widen(half);
    weight.store(scores + j);
    total = total + weight;
  }
  if (!common.empty()) {
    for (int j = common.lo / kTileDims * kTileDims; j < common.hi; j += 16) {
      const int lo = common.lo > j ? common.lo - j : 0;
      const int hi = common.hi - j < 16 ? common.hi - j : 16;
      select_range(Vec::load(scores + j), Vec::zero(), lo < 16 ? lo : 16, hi).store(weights + j);
    }
    for (int j = (common.hi + 15) / 16 * 16; j % kTileDims != 0; j += 16) {
      Vec::zero().store(weights + j);
    }
  }
  return {maximum, sum(total)};
}

// out[rows] += weights . values of the tokens in `range` for 32 dimensions, or 64 if `two`: more
// sums at a time hide the latency of the product.
inline void add_tiled_dims(const bf16* weights, const bf16* values, Range range, int64_t dim,
                           int64_t d, bool two, int64_t rows, float* out) {
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int j = range.lo / kTileDims * kTileDims; j < range.hi; j += kTileDims) {
    const bf16* tiles = values + j * dim + d * 2 * kTileRows;
    _tile_loadd(2, weights + j, kSplit * sizeof(bf16));
    _tile_loadd(3, tiles, 64);
    _tile_dpbf16ps(4, 2, 3);
    _tile_loadd(3, tiles + kTileSize, 64);
    _tile_dpbf16ps(5, 2, 3);
    if (!two) continue;
    _tile_loadd(3, tiles + 2 * kTileSize, 64);
    _tile_dpbf16ps(6, 2, 3);
    _tile_loadd(3, tiles + 3 * kTileSize, 64);
    _tile_dpbf16ps(7, 2, 3);
  }
  alignas(64) float sums[4][kTileRows * 16];
  _tile_stored(4, sums[0], 64);
  _tile_stored(5, sums[1], 64);
  if (two) {
    _tile_stored(6, sums[2], 64);
    _tile_stored(7, sums[3], 64);
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* to = out + r * dim + d;
    add_paired(sums[0] + r * 16, sums[1] + r * 16, to);
    if (two) add_paired(sums[2] + r * 16, sums[3] + r * 16, to + kTileDims);
  }
}

inline void add_tiled_values(const bf16* weights, const bf16* values, Range range, int64_t dim,
                             int64_t rows, float* out) {
  for (int64_t d = 0; d < dim; d += 2 * kTileDims) {
    add_tiled_dims(weights, values, range, dim, d, d + kTileDims < dim, rows, out);
  }
}

}  // namespace infopt

#endif
