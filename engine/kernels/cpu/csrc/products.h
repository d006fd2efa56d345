// Products of activation rows with stored weights. A register tile is R rows x 16 C outputs; every output is summed
// over k in one order whatever R and C are, so a row's result does not depend on its neighbours.
#pragma once

#include <algorithm>

#include "dots.h"
#include "kernels.h"
#include "quantize.h"

namespace fairlane {
namespace FL_ISA {

#if defined(FL_AVX512)
constexpr int kTileOuts = 4, kTileRows = 6, kBlockTileRows = 8;  // in vectors of 16 outputs; in rows; in rows of block formats
#elif defined(FL_AVX2)
constexpr int kTileOuts = 2, kTileRows = 2, kBlockTileRows = 2;
#else
constexpr int kTileOuts = 1, kTileRows = 2, kBlockTileRows = 2;
#endif
constexpr int kGroupVectors = kOutGroup / kLanes;
constexpr int kReadAhead = 24;  // steps of k; 6 KB of bf16
constexpr int kReadAheadBlocks = 12;
constexpr int kStepLines = 4;  // cache lines of a group that a step of k takes, in bf16 and int8
constexpr int kQuantBlock = 32;
constexpr int kQuadsPerBlock = kQuantBlock / 4;

// What a tile fetches while it multiplies. The first one of a unit finds its group on the way from memory, and reads ahead in
// it; those that follow have it in the second-level cache, and share the fetching of the group that comes next: without that
// memory would be idle while they run, and the next group's first tile would wait for it.
struct ReadAhead {
  const char* next;  // null: the tile's own group
  int lines;         // of each kStepLines of the next one
};

// Fetches for one step of k. `data`: C vectors of the tile's own group.
template <int C, int L>
FL_INLINE void Fetch(const void* data, const ReadAhead& ahead, int64_t step) {
  if constexpr (L == 0) {
    for (int c = 0; c < C; ++c) __builtin_prefetch(static_cast<const char*>(data) + (kReadAhead * kStepLines + c) * 64, 0, 3);
  } else {
    for (int line = 0; line < L; ++line) __builtin_prefetch(ahead.next + (step * kStepLines + line) * 64, 0, 2);
  }
}

template <int R, int C, int L>
void MultiplyBf16(const Weight& w, const Activations& x, int64_t group, int64_t row, int vector, const ReadAhead& ahead, float* out) {
  const auto* data = reinterpret_cast<const uint16_t*>(w.data) + group * w.in * kOutGroup + vector * 2 * kLanes;
  const uint16_t* rows = x.bf16 + row * w.in;
  F16 acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = Zero();
  for (int64_t k = 0; k < w.in; k += 2, data += 2 * kOutGroup) {
    PairW weight[C];
    for (int c = 0; c < C; ++c) weight[c] = LoadPairW(data + c * 2 * kLanes);
    Fetch<C, L>(data, ahead, k / 2);
    for (int r = 0; r < R; ++r) {
      const PairX pair = SplatPair(Word(rows + r * w.in + k));
      for (int c = 0; c < C; ++c) acc[r][c] = DotPair(acc[r][c], weight[c], pair);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) Store(out + r * kOutGroup + (vector + c) * kLanes, acc[r][c]);
}

template <int R, int C, int L>
void MultiplyInt8(const Weight& w, const Activations& x, int64_t group, int64_t row, int vector, const ReadAhead& ahead, float* out) {
  const auto* data = reinterpret_cast<const uint8_t*>(w.data) + group * w.in * kOutGroup + vector * 4 * kLanes;
  const int8_t* rows = x.quantized + row * w.in;
  I16 acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = SetInt(-128 * x.sum[row + r]);
  for (int64_t k = 0; k < w.in; k += 4, data += 4 * kOutGroup) {
    QuadW weight[C];
    for (int c = 0; c < C; ++c) weight[c] = LoadQuadW(data + c * 4 * kLanes);
    Fetch<C, L>(data, ahead, k / 4);
    for (int r = 0; r < R; ++r) {
      const QuadX quad = SplatQuad(Word(rows + r * w.in + k));
      for (int c = 0; c < C; ++c) acc[r][c] = DotQuad(acc[r][c], weight[c], quad);
    }
  }
  const float* scales = static_cast<const float*>(w.scales) + group * kOutGroup + vector * kLanes;
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      Store(out + r * kOutGroup + (vector + c) * kLanes, ToFloat(acc[r][c]) * (Load(scales + c * kLanes) * Set(x.scale[row + r])));
}

// GGUF blocks: 32 weights of an output share a scale d (and, Q4, a minimum m): sum of d q x + m x.
template <bool kNibbles, int R>
void MultiplyBlocks(const Weight& w, const Activations& x, int64_t group, int64_t row, int vector, float* out) {
  const int64_t blocks = w.in / kQuantBlock, first = (group * kGroupVectors + vector) * blocks;
  constexpr int64_t kBlockBytes = kQuantBlock * kLanes / (kNibbles ? 2 : 1), kScales = kLanes * (kNibbles ? 2 : 1);
  const auto* data = reinterpret_cast<const uint8_t*>(w.data) + first * kBlockBytes;
  const uint16_t* scales = static_cast<const uint16_t*>(w.scales) + first * kScales;
  F16 acc[R];
  for (int r = 0; r < R; ++r) acc[r] = Zero();
  for (int64_t block = 0; block < blocks; ++block, data += kBlockBytes, scales += kScales) {
    for (int64_t line = 0; line < kBlockBytes; line += 64) __builtin_prefetch(data + kReadAheadBlocks * kBlockBytes + line, 0, 3);
    __builtin_prefetch(scales + kReadAheadBlocks * kScales, 0, 3);
    QuadW weight[kQuadsPerBlock];
    if constexpr (kNibbles) {
      for (int j = 0; j < kQuadsPerBlock / 2; ++j) LoadNibbles(data + j * 4 * kLanes, &weight[j], &weight[j + kQuadsPerBlock / 2]);
    } else {
      for (int j = 0; j < kQuadsPerBlock; ++j) weight[j] = LoadQuadW(data + j * 4 * kLanes);
    }
    const F16 d = LoadHalf(scales);
    for (int r = 0; r < R; ++r) {
      const int8_t* quads = x.quantized + (row + r) * w.in + block * kQuantBlock;
      const int64_t at = (row + r) * blocks + block;
      I16 dot = SetInt(kNibbles ? 0 : -128 * x.sum[at]);
      for (int j = 0; j < kQuadsPerBlock; ++j) dot = DotQuad(dot, weight[j], SplatQuad(Word(quads + 4 * j)));
      acc[r] = Fma(ToFloat(dot), d * Set(x.scale[at]), acc[r]);
      if constexpr (kNibbles) acc[r] = Fma(LoadHalf(scales + kLanes), Set(x.scale[at] * (float)x.sum[at]), acc[r]);
    }
  }
  for (int r = 0; r < R; ++r) Store(out + r * kOutGroup + vector * kLanes, acc[r]);
}

template <int R, int L>
void MultiplyGroup(const Weight& w, const Activations& x, int64_t group, int64_t row, const ReadAhead& ahead, float* out) {
  for (int v = 0; v < kGroupVectors; v += kTileOuts) {
    if (w.kind == WeightKind::kBf16) MultiplyBf16<R, kTileOuts, L>(w, x, group, row, v, ahead, out);
    else MultiplyInt8<R, kTileOuts, L>(w, x, group, row, v, ahead, out);
  }
}

template <int R>
void MultiplyRows(const Weight& w, const Activations& x, int64_t group, int64_t row, const ReadAhead& ahead, float* out) {
  if (w.kind == WeightKind::kBf16 || w.kind == WeightKind::kInt8) {
    if constexpr (R <= kTileRows) {
      if (!ahead.next) MultiplyGroup<R, 0>(w, x, group, row, ahead, out);
      else if (ahead.lines == 1) MultiplyGroup<R, 1>(w, x, group, row, ahead, out);
      else if (ahead.lines == 2) MultiplyGroup<R, 2>(w, x, group, row, ahead, out);
      else MultiplyGroup<R, kStepLines>(w, x, group, row, ahead, out);
    }
  } else {
    for (int v = 0; v < kGroupVectors; ++v) {
      if (w.kind == WeightKind::kQ8) MultiplyBlocks<false, R>(w, x, group, row, v, out);
      else MultiplyBlocks<true, R>(w, x, group, row, v, out);
    }
  }
}

// Calls MultiplyRows<rows>, rows <= R.
template <int R>
void MultiplyUpTo(int64_t rows, const Weight& w, const Activations& x, int64_t group, int64_t row, const ReadAhead& ahead, float* out) {
  if constexpr (R > 1) {
    if (rows < R) return MultiplyUpTo<R - 1>(rows, w, x, group, row, ahead, out);
  }
  MultiplyRows<R>(w, x, group, row, ahead, out);
}

inline void Multiply(const Weight& w, const Activations& x, int64_t group, int64_t begin, int64_t end, const char* next, float* out) {
  const int64_t most = w.kind == WeightKind::kBf16 || w.kind == WeightKind::kInt8 ? kTileRows : kBlockTileRows;
  const int64_t rows = end - begin, tiles = (rows + most - 1) / most;
  const int share = tiles > 4 ? 1 : tiles > 2 ? 2 : kStepLines;
  int fetched = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = rows * tile / tiles, behind = rows * (tile + 1) / tiles;
    const bool fetches = next && tile > 0 && fetched < kStepLines;
    const ReadAhead ahead = {fetches ? next + fetched * 64 : nullptr, share};
    if (fetches) fetched += share;
    MultiplyUpTo<kBlockTileRows>(behind - first, w, x, group, begin + first, ahead, out + first * kOutGroup);
  }
}

// Symmetric int8: one scale a row (kInt8) or a block of 32 (the GGUF kinds). Where a value is not finite the scale is
// NaN, and with it every output.
inline void Quantize(WeightKind kind, const uint16_t* x, int64_t in, int8_t* q, float* scale, int32_t* sum) {
  const int64_t block = kind == WeightKind::kInt8 ? in : kQuantBlock;
  for (int64_t start = 0, at = 0; start < in; start += block, ++at) {
    const Grid grid = GridOf(LoadFrom(x + start), block, 127);
    I16 total = SetInt(0);
    for (int64_t k = start; k < start + block; k += kLanes) {
      const I16 value = OnGrid(LoadBf16(x + k), grid);
      StoreBytes(q + k, value);
      total = total + value;
    }
    scale[at] = grid.scale;
    sum[at] = Sum(total);
  }
}

template <typename F>
FL_INLINE void EachVector(int64_t rows, int64_t width, const F& f) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o + kLanes <= width; o += kLanes) f(r, o);
}

inline void StoreTile(const float* tile, int64_t rows, int64_t width, const uint16_t* bias, const uint16_t* residual, int64_t stride,
                      Type type, void* out) {
  const auto value = [&](int64_t r, int64_t o) {
    F16 x = Load(tile + r * kOutGroup + o);
    if (bias) x = x + LoadBf16(bias + o);
    if (residual) x = x + LoadBf16(residual + r * stride + o);
    return x;
  };
  const int64_t whole = width / kLanes * kLanes;
  if (type == Type::kBf16) {
    auto* y = static_cast<uint16_t*>(out);
    EachVector(rows, width, [&](int64_t r, int64_t o) { StoreBf16(y + r * stride + o, value(r, o)); });
  } else {
    auto* y = static_cast<float*>(out);
    EachVector(rows, width, [&](int64_t r, int64_t o) { Store(y + r * stride + o, value(r, o)); });
  }
  if (whole == width) return;
  for (int64_t r = 0; r < rows; ++r) {  // outputs behind the last whole vector
    float lanes[kLanes];
    uint16_t halves[kLanes];
    std::memcpy(lanes, tile + r * kOutGroup + whole, sizeof lanes);
    for (int64_t o = whole; o < width; ++o) {
      if (bias) lanes[o - whole] += Bf16ToFloat(bias[o]);
      if (residual) lanes[o - whole] += Bf16ToFloat(residual[r * stride + o]);
    }
    StoreBf16(halves, Load(lanes));
    if (type == Type::kBf16) std::memcpy(static_cast<uint16_t*>(out) + r * stride + whole, halves, 2 * (width - whole));
    else std::memcpy(static_cast<float*>(out) + r * stride + whole, lanes, 4 * (width - whole));
  }
}

// silu(gate) * up.
inline void SiluGate(const float* gate, const float* up, int64_t rows, const uint16_t* gate_bias, const uint16_t* up_bias, int64_t stride,
                     uint16_t* out) {
  EachVector(rows, kOutGroup, [&](int64_t r, int64_t o) {
    F16 g = Load(gate + r * kOutGroup + o), u = Load(up + r * kOutGroup + o);
    if (gate_bias) g = g + LoadBf16(gate_bias + o);
    if (up_bias) u = u + LoadBf16(up_bias + o);
    StoreBf16(out + r * stride + o, g / (Set(1.0f) + Exp(Zero() - g)) * u);
  });
}

// n: a multiple of 16.
inline void RmsNorm(const uint16_t* x, const float* weight, int64_t n, float eps, uint16_t* out) {
  F16 squares = Zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const F16 v = LoadBf16(x + i);
    squares = Fma(v, v, squares);
  }
  const float inverse = 1.0f / std::sqrt(Sum(squares) / (float)n + eps);
  for (int64_t i = 0; i < n; i += kLanes) StoreBf16(out + i, LoadBf16(x + i) * Set(inverse) * Load(weight + i));
}

// n: a multiple of 32.
inline void Rotate(uint16_t* x, const float* norm, float eps, const float* cos, const float* sin, int64_t n) {
  if (norm) RmsNorm(x, norm, n, eps, x);
  for (int64_t i = 0; i < n / 2; i += kLanes) {
    const F16 a = LoadBf16(x + i), b = LoadBf16(x + n / 2 + i), c = Load(cos + i), s = Load(sin + i);
    StoreBf16(x + i, a * c - b * s);
    StoreBf16(x + n / 2 + i, b * c + a * s);
  }
}

}  // namespace FL_ISA
}  // namespace fairlane
