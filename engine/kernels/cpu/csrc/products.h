// Products of activation rows with stored weights. A register tile is R rows x 16 C outputs; every output is summed
// over k in one order whatever R and C are, so a row's result does not depend on its neighbours.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace fairlane {
namespace FL_ISA {

#if defined(FL_AVX512)
constexpr int kTileOuts = 4, kTileRows = 6;  // in vectors of 16 outputs; in rows
#elif defined(FL_AVX2)
constexpr int kTileOuts = 2, kTileRows = 2;
#else
constexpr int kTileOuts = 1, kTileRows = 2;
#endif
constexpr int kGroupVectors = kOutGroup / kLanes;
constexpr int kQuantBlock = 32;
constexpr int kQuadsPerBlock = kQuantBlock / 4;

FL_INLINE uint32_t Word(const void* p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return x;
}

template <int R, int C>
void MultiplyBf16(const Weight& w, const Activations& x, int64_t group, int64_t row, int vector, float* out) {
  const auto* data = reinterpret_cast<const uint16_t*>(w.data) + group * w.in * kOutGroup + vector * 2 * kLanes;
  const uint16_t* rows = x.bf16 + row * w.in;
  F16 acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = Zero();
  for (int64_t k = 0; k < w.in; k += 2, data += 2 * kOutGroup) {
    PairW weight[C];
    for (int c = 0; c < C; ++c) weight[c] = LoadPairW(data + c * 2 * kLanes);
    if (R == 1) __builtin_prefetch(data + 32 * 2 * kOutGroup, 0, 3);
    for (int r = 0; r < R; ++r) {
      const PairX pair = SplatPair(Word(rows + r * w.in + k));
      for (int c = 0; c < C; ++c) acc[r][c] = DotPair(acc[r][c], weight[c], pair);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) Store(out + r * kOutGroup + (vector + c) * kLanes, acc[r][c]);
}

template <int R, int C>
void MultiplyInt8(const Weight& w, const Activations& x, int64_t group, int64_t row, int vector, float* out) {
  const auto* data = reinterpret_cast<const uint8_t*>(w.data) + group * w.in * kOutGroup + vector * 4 * kLanes;
  const int8_t* rows = x.quantized + row * w.in;
  I16 acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = SetInt(-128 * x.sum[row + r]);
  for (int64_t k = 0; k < w.in; k += 4, data += 4 * kOutGroup) {
    QuadW weight[C];
    for (int c = 0; c < C; ++c) weight[c] = LoadQuadW(data + c * 4 * kLanes);
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
  const int64_t blocks = w.in / kQuantBlock;
  constexpr int64_t kBlockBytes = kQuantBlock * kOutGroup / (kNibbles ? 2 : 1), kScales = kOutGroup * (kNibbles ? 2 : 1);
  const auto* data = reinterpret_cast<const uint8_t*>(w.data) + group * blocks * kBlockBytes + vector * 4 * kLanes;
  const uint16_t* scales = static_cast<const uint16_t*>(w.scales) + group * blocks * kScales + vector * kLanes;
  F16 acc[R];
  for (int r = 0; r < R; ++r) acc[r] = Zero();
  for (int64_t block = 0; block < blocks; ++block, data += kBlockBytes, scales += kScales) {
    QuadW weight[kQuadsPerBlock];
    if constexpr (kNibbles) {
      for (int j = 0; j < kQuadsPerBlock / 2; ++j) LoadNibbles(data + j * 4 * kOutGroup, &weight[j], &weight[j + kQuadsPerBlock / 2]);
    } else {
      for (int j = 0; j < kQuadsPerBlock; ++j) weight[j] = LoadQuadW(data + j * 4 * kOutGroup);
    }
    const F16 d = LoadHalf(scales);
    for (int r = 0; r < R; ++r) {
      const int8_t* quads = x.quantized + (row + r) * w.in + block * kQuantBlock;
      const int64_t at = (row + r) * blocks + block;
      I16 dot = SetInt(kNibbles ? 0 : -128 * x.sum[at]);
      for (int j = 0; j < kQuadsPerBlock; ++j) dot = DotQuad(dot, weight[j], SplatQuad(Word(quads + 4 * j)));
      acc[r] = Fma(ToFloat(dot), d * Set(x.scale[at]), acc[r]);
      if constexpr (kNibbles) acc[r] = Fma(LoadHalf(scales + kOutGroup), Set(x.scale[at] * (float)x.sum[at]), acc[r]);
    }
  }
  for (int r = 0; r < R; ++r) Store(out + r * kOutGroup + vector * kLanes, acc[r]);
}

template <int R>
void MultiplyRows(const Weight& w, const Activations& x, int64_t group, int64_t row, float* out) {
  switch (w.kind) {
    case WeightKind::kBf16:
      for (int v = 0; v < kGroupVectors; v += kTileOuts) MultiplyBf16<R, kTileOuts>(w, x, group, row, v, out);
      break;
    case WeightKind::kInt8:
      for (int v = 0; v < kGroupVectors; v += kTileOuts) MultiplyInt8<R, kTileOuts>(w, x, group, row, v, out);
      break;
    case WeightKind::kQ8:
      for (int v = 0; v < kGroupVectors; ++v) MultiplyBlocks<false, R>(w, x, group, row, v, out);
      break;
    case WeightKind::kQ4:
      for (int v = 0; v < kGroupVectors; ++v) MultiplyBlocks<true, R>(w, x, group, row, v, out);
      break;
  }
}

inline void Multiply(const Weight& w, const Activations& x, int64_t group, int64_t begin, int64_t end, float* out) {
  while (begin < end) {
    const int64_t left = end - begin, take = left < kTileRows ? left : kTileRows;
    switch (take) {
      case 1: MultiplyRows<1>(w, x, group, begin, out); break;
      case 2: MultiplyRows<2>(w, x, group, begin, out); break;
#if defined(FL_AVX512)
      case 3: MultiplyRows<3>(w, x, group, begin, out); break;
      case 4: MultiplyRows<4>(w, x, group, begin, out); break;
      case 5: MultiplyRows<5>(w, x, group, begin, out); break;
      default: MultiplyRows<6>(w, x, group, begin, out); break;
#endif
    }
    begin += take;
    out += take * kOutGroup;
  }
}

// Symmetric int8: one scale a row (kInt8) or a block of 32 (the GGUF kinds). A row of NaN or infinity keeps its NaN:
// its scale is one.
inline void Quantize(WeightKind kind, const uint16_t* x, int64_t in, int8_t* q, float* scale, int32_t* sum) {
  const int64_t block = kind == WeightKind::kInt8 ? in : kQuantBlock;
  for (int64_t start = 0, at = 0; start < in; start += block, ++at) {
    F16 top = Zero();
    bool finite = true;
    int64_t k = start;
    for (; k + kLanes <= start + block; k += kLanes) {
      const F16 v = LoadBf16(x + k), negative = Zero() - v;
      top = Max(Max(v, negative), top);
      const F16 zero = v * Zero();
      FL_EACH for (int lane = 0; lane < kBytes / 4; ++lane) finite &= zero.r[i][lane] == 0.0f;
    }
    float amax = Highest(top);
    for (; k < start + block; ++k) {
      const float v = Bf16ToFloat(x[k]);
      finite &= v * 0.0f == 0.0f;
      amax = std::fabs(v) > amax ? std::fabs(v) : amax;
    }
    const float inverse = finite && amax > 0 ? 127.0f / amax : 0.0f;
    int32_t total = 0;
    for (k = start; k < start + block; ++k) {
      const float shifted = Bf16ToFloat(x[k]) * inverse + 12582912.0f;  // rounds to nearest even in the low bits
      int32_t bits;
      std::memcpy(&bits, &shifted, 4);
      const int32_t value = finite ? bits - 0x4B400000 : 0;
      q[k] = (int8_t)value;
      total += value;
    }
    scale[at] = finite ? amax / 127.0f : NAN;
    sum[at] = total;
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
