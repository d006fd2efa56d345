// How K and V of each type are laid out, read and written. In int8 a score is an exact sum of products of 8-bit K with
// 16-bit q, so only K and V lose precision; scales come in once a token: K's with the score, V's with the weight.
#pragma once

#include <memory>
#include <utility>

#include "dots.h"
#include "kernels.h"
#include "quantize.h"

namespace fairlane {
namespace FL_ISA {

constexpr int kBlockTiles = kKvBlock / kLanes;

// Where a block's tiles lie, and those that will be read after it.
template <typename Element>
struct Tiles {
  const Element* k[2 * kBlockTiles];
  const Element* v[kBlockTiles];
  const float* k_scale[kBlockTiles];  // int8 only
  const float* v_scale[kBlockTiles];
};

template <Type T>
struct Kv;

template <>
struct Kv<Type::kBf16> {
  using Element = uint16_t;
  using Query = uint16_t;
  static constexpr int kDims = 2;  // dimensions of K a step covers
  static FL_INLINE F16 Start() { return Zero(); }
  static FL_INLINE PairW LoadK(const uint16_t* p) { return LoadPairW(p); }
  static FL_INLINE PairX LoadQ(const uint16_t* q) { return SplatPair(Word(q)); }
  static FL_INLINE F16 Dot(const F16& acc, const PairW& k, const PairX& q) { return DotPair(acc, k, q); }
  static FL_INLINE F16 LoadV(const uint16_t* p) { return LoadBf16(p); }
  static FL_INLINE void StoreOut(uint16_t* p, const F16& x) { StoreBf16(p, x); }
};

template <>
struct Kv<Type::kF32> {
  using Element = float;
  using Query = float;
  static constexpr int kDims = 1;
  static FL_INLINE F16 Start() { return Zero(); }
  static FL_INLINE F16 LoadK(const float* p) { return Load(p); }
  static FL_INLINE vf LoadQ(const float* q) { return Splat(*q); }
  static FL_INLINE F16 Dot(const F16& acc, const F16& k, const vf& q) { F16 f; FL_EACH f.r[i] = Fma(k.r[i], q, acc.r[i]); return f; }
  static FL_INLINE F16 LoadV(const float* p) { return Load(p); }
  static FL_INLINE void StoreOut(float* p, const F16& x) { Store(p, x); }
};

template <>
struct Kv<Type::kInt8> {
  using Element = int8_t;
  using Query = int16_t;  // of four dimensions first 0 and 2, then 1 and 3, as DotWide takes them
  static constexpr int kDims = 4;
  static FL_INLINE I16 Start() { return SetInt(0); }
  static FL_INLINE WideW LoadK(const int8_t* p) { return LoadWideW(p); }
  static FL_INLINE WideX LoadQ(const int16_t* q) { return SplatWide(Word(q), Word(q + 2)); }
  static FL_INLINE I16 Dot(const I16& acc, const WideW& k, const WideX& q) { return DotWide(acc, k, q); }
  static FL_INLINE F16 LoadV(const int8_t* p) { return LoadBytes(p); }
};

// The query heads of a KV head as scores want them: as they are, or rounded to 16 bits with one scale a head.
template <Type T>
class Queries {
 public:
  using Query = typename Kv<T>::Query;
  Queries(const AttentionShape&, const QueryRows& rows) : values_(static_cast<const Query*>(rows.q)), stride_(rows.q_stride) {}
  const Query* values(int64_t row) const { return values_ + row * stride_; }
  const float* scales(int64_t) const { return nullptr; }

 private:
  const Query* values_;
  int64_t stride_;
};

template <>
class Queries<Type::kInt8> {
 public:
  Queries(const AttentionShape& s, const QueryRows& rows)
      : group_(s.group()), head_dim_(s.head_dim), values_(new int16_t[rows.rows * group_ * head_dim_]), scales_(new float[rows.rows * group_]) {
    if (s.type == Type::kBf16) Round<uint16_t>(rows);
    else Round<float>(rows);
  }
  const int16_t* values(int64_t row) const { return values_.get() + row * group_ * head_dim_; }
  const float* scales(int64_t row) const { return scales_.get() + row * group_; }

 private:
  template <typename From>
  void Round(const QueryRows& rows) {
    for (int64_t i = 0; i < rows.rows * group_; ++i) {
      const auto load = LoadFrom(static_cast<const From*>(rows.q) + i / group_ * rows.q_stride + i % group_ * head_dim_);
      const Grid grid = GridOf(load, head_dim_, 32767);
      int16_t* to = values_.get() + i * head_dim_;
      for (int64_t d = 0; d < head_dim_; d += kLanes) StoreShorts(to + d, OnGrid(load(d), grid));
      for (int64_t d = 0; d < head_dim_; d += 4) std::swap(to[d + 1], to[d + 2]);
      scales_[i] = grid.scale;
    }
  }
  int64_t group_, head_dim_;
  std::unique_ptr<int16_t[]> values_;
  std::unique_ptr<float[]> scales_;
};

// What the integers of a score stand for.
FL_INLINE F16 Rescaled(const F16& dot, const float*, const float*) { return dot; }
FL_INLINE F16 Rescaled(const I16& dot, const float* k_scale, const float* q_scale) { return ToFloat(dot) * (Load(k_scale) * Set(*q_scale)); }

// k and v of one token and head, values of the cache's own type.
template <Type T>
FL_INLINE void WriteSame(const AttentionShape& s, char* head, int64_t offset, const void* k, const void* v) {
  using Element = typename Kv<T>::Element;
  constexpr int kDims = Kv<T>::kDims;
  auto* to = reinterpret_cast<Element*>(head) + offset / kLanes * kLanes * s.head_dim + offset % kLanes * kDims;
  for (int64_t d = 0; d < s.head_dim; d += kDims) std::memcpy(to + d * kLanes, static_cast<const Element*>(k) + d, kDims * sizeof(Element));
  std::memcpy(head + s.part_bytes() + offset * s.head_dim * sizeof(Element), v, s.head_dim * sizeof(Element));
}

// Answers the scale.
template <typename From>
FL_INLINE float RoundVector(const void* from, int64_t n, int8_t* to) {
  const auto load = LoadFrom(static_cast<const From*>(from));
  const Grid grid = GridOf(load, n, 127);
  for (int64_t d = 0; d < n; d += kLanes) StoreBytes(to + d, OnGrid(load(d), grid));
  return grid.scale;
}

// The same rounded to int8. Where a value is not finite the scale is NaN.
template <typename From>
FL_INLINE void WriteRounded(const AttentionShape& s, char* head, int64_t offset, const void* k, const void* v) {
  alignas(64) int8_t rounded[kMaxHeadDim];
  const float k_scale = RoundVector<From>(k, s.head_dim, rounded);
  char* to = head + offset / kLanes * kLanes * s.head_dim + offset % kLanes * 4;
  for (int64_t d = 0; d < s.head_dim; d += 4) std::memcpy(to + d * kLanes, rounded + d, 4);
  char* v_part = head + s.part_bytes();
  const float v_scale = RoundVector<From>(v, s.head_dim, reinterpret_cast<int8_t*>(v_part) + offset * s.head_dim);
  const int64_t scale_at = s.part_values_bytes() + offset * (int64_t)sizeof(float);
  std::memcpy(head + scale_at, &k_scale, sizeof(float));
  std::memcpy(v_part + scale_at, &v_scale, sizeof(float));
}

inline void WriteKv(const AttentionShape& s, char* cache, const void* k, const void* v, int64_t stride, const int32_t* slots, int64_t begin, int64_t end) {
  const bool is_bf16 = s.type == Type::kBf16;
  const auto write = s.kv == Type::kInt8 ? (is_bf16 ? WriteRounded<uint16_t> : WriteRounded<float>)
                                         : (is_bf16 ? WriteSame<Type::kBf16> : WriteSame<Type::kF32>);
  for (int64_t t = begin; t < end; ++t) {
    if (slots[t] < 0) continue;
    for (int64_t h = 0; h < s.num_kv_heads; ++h) {
      const int64_t from = (t * stride + h * s.head_dim) * Bytes(s.type);
      write(s, cache + slots[t] / s.page_size * s.page_bytes() + h * s.head_bytes(), slots[t] % s.page_size, static_cast<const char*>(k) + from,
            static_cast<const char*>(v) + from);
    }
  }
}

}  // namespace FL_ISA
}  // namespace fairlane
