// Paged attention over the lanes of simd.h: scores with 16 tokens in the lanes (no sum across lanes), weighted V with
// 16 dimensions in the lanes. An online softmax over blocks of kKvBlock tokens (Milakov & Gimelshein, 2018; the split
// over KV is Flash-Decoding's, Dao et al., 2023).
#pragma once

#include <type_traits>

#include "kernels.h"
#include "simd.h"

namespace fairlane {
namespace FL_ISA {

constexpr int kBlockTiles = kKvBlock / kLanes;
constexpr int kMaxHeads = kMaxAccumulators < 8 ? 4 : 8;  // query heads that share one pass over K or V

template <Type T>
struct Kv;

template <>
struct Kv<Type::kBf16> {
  using Element = uint16_t;
  static constexpr int kDims = 2;  // dimensions of K a step covers
  static FL_INLINE PairW LoadK(const uint16_t* p) { return LoadPairW(p); }
  static FL_INLINE PairX LoadQ(const uint16_t* q) {
    uint32_t pair;
    std::memcpy(&pair, q, 4);
    return SplatPair(pair);
  }
  static FL_INLINE F16 Dot(const F16& acc, const PairW& k, const PairX& q) { return DotPair(acc, k, q); }
  static FL_INLINE F16 LoadV(const uint16_t* p) { return LoadBf16(p); }
  static FL_INLINE void StoreOut(uint16_t* p, const F16& x) { StoreBf16(p, x); }
};

template <>
struct Kv<Type::kF32> {
  using Element = float;
  static constexpr int kDims = 1;
  static FL_INLINE F16 LoadK(const float* p) { return Load(p); }
  static FL_INLINE vf LoadQ(const float* q) { return Splat(*q); }
  static FL_INLINE F16 Dot(const F16& acc, const F16& k, const vf& q) { F16 f; FL_EACH f.r[i] = Fma(k.r[i], q, acc.r[i]); return f; }
  static FL_INLINE F16 LoadV(const float* p) { return Load(p); }
  static FL_INLINE void StoreOut(float* p, const F16& x) { Store(p, x); }
};

// Where a block's tiles lie, and those that will be read after it.
template <typename Element>
struct Tiles {
  const Element* k[2 * kBlockTiles];
  const Element* v[kBlockTiles];
};

// Scores of tiles [first, first + N) for H heads, f32 [H, kKvBlock]. Reads ahead: the tiles behind these, and their V.
template <Type T, int H, int N>
FL_INLINE void ScoreTiles(const Tiles<typename Kv<T>::Element>& tiles, int first, const typename Kv<T>::Element* q, int64_t head_dim,
                          bool read_ahead, float* scores) {
  using P = Kv<T>;
  F16 acc[N][H];
  for (int n = 0; n < N; ++n)
    for (int h = 0; h < H; ++h) acc[n][h] = Zero();
  const int64_t step = kLanes * P::kDims;
  for (int64_t d = 0, at = 0; d < head_dim; d += P::kDims, at += step) {
    if (read_ahead) {
      for (int n = 0; n < N; ++n) {
        __builtin_prefetch(tiles.k[first + N + n] + at, 0, 3);
        __builtin_prefetch(tiles.v[first + n] + at, 0, 2);
      }
    }
    decltype(P::LoadK(nullptr)) k[N];
    for (int n = 0; n < N; ++n) k[n] = P::LoadK(tiles.k[first + n] + at);
    for (int h = 0; h < H; ++h) {
      const auto x = P::LoadQ(q + h * head_dim + d);
      for (int n = 0; n < N; ++n) acc[n][h] = P::Dot(acc[n][h], k[n], x);
    }
  }
  for (int n = 0; n < N; ++n)
    for (int h = 0; h < H; ++h) Store(scores + h * kKvBlock + (first + n) * kLanes, acc[n][h]);
}

template <Type T, int H>
void Scores(const Tiles<typename Kv<T>::Element>& tiles, int begin, int end, const typename Kv<T>::Element* q, int64_t head_dim,
            bool read_ahead, float* scores) {
  constexpr int kWide = kMaxAccumulators / H > 4 ? 4 : (kMaxAccumulators / H < 1 ? 1 : kMaxAccumulators / H);
  int tile = begin;
  for (; tile + kWide <= end; tile += kWide) ScoreTiles<T, H, kWide>(tiles, tile, q, head_dim, read_ahead, scores);
  for (; tile < end; ++tile) ScoreTiles<T, H, 1>(tiles, tile, q, head_dim, read_ahead, scores);
}

// Weighted V of tokens [begin, end) of the block, dimensions [d, d + 16 N) of H heads.
template <Type T, int H, int N>
FL_INLINE void WeighDims(const Tiles<typename Kv<T>::Element>& tiles, int begin, int end, const float* weights, int64_t head_dim, int64_t d,
                         float* out) {
  using P = Kv<T>;
  F16 acc[H][N];
  for (int h = 0; h < H; ++h)
    for (int n = 0; n < N; ++n) acc[h][n] = Zero();
  for (int token = begin; token < end;) {
    const int tile = token / kLanes, stop = (tile + 1) * kLanes < end ? (tile + 1) * kLanes : end;
    const auto* v = tiles.v[tile] + (token % kLanes) * head_dim + d;
    for (; token < stop; ++token, v += head_dim) {
      F16 value[N];
      for (int n = 0; n < N; ++n) value[n] = P::LoadV(v + n * kLanes);
      for (int h = 0; h < H; ++h) {
        const vf weight = Splat(weights[h * kKvBlock + token]);
        for (int n = 0; n < N; ++n) FL_EACH acc[h][n].r[i] = Fma(value[n].r[i], weight, acc[h][n].r[i]);
      }
    }
  }
  for (int h = 0; h < H; ++h)
    for (int n = 0; n < N; ++n) Store(out + h * head_dim + d + n * kLanes, acc[h][n]);
}

template <Type T, int H>
void Weigh(const Tiles<typename Kv<T>::Element>& tiles, int begin, int end, const float* weights, int64_t head_dim, float* out) {
  constexpr int kWide = kMaxAccumulators / H > 4 ? 4 : (kMaxAccumulators / H < 1 ? 1 : kMaxAccumulators / H);
  int64_t d = 0;
  for (; d + kWide * kLanes <= head_dim; d += kWide * kLanes) WeighDims<T, H, kWide>(tiles, begin, end, weights, head_dim, d, out);
  for (; d < head_dim; d += kLanes) WeighDims<T, H, 1>(tiles, begin, end, weights, head_dim, d, out);
}

// Scale, soft cap, mask, e^x: turns a head's scores of [begin, end) into weights; whole tiles, 0 outside the bounds.
FL_INLINE void Soften(const AttentionShape& s, int begin, int end, float* scores, float* highest, float* sum) {
  const int first = begin / kLanes * kLanes, last = (end + kLanes - 1) / kLanes * kLanes;
  for (int token = first; token < last; token += kLanes) {
    F16 x = Load(scores + token) * Set(s.scale);
    if (s.soft_cap > 0) {  // cap * tanh(x / cap)
      const F16 one = Set(1.0f), e = Exp(x * Set(2.0f / s.soft_cap));
      x = Set(s.soft_cap) * (one - Set(2.0f) / (e + one));
    }
    Store(scores + token, x);
  }
  for (int token = first; token < begin; ++token) scores[token] = -INFINITY;
  for (int token = end; token < last; ++token) scores[token] = -INFINITY;
  F16 top = Set(-INFINITY);
  for (int token = first; token < last; token += kLanes) top = Max(Load(scores + token), top);
  *highest = Highest(top);
  F16 total = Zero();
  for (int token = first; token < last; token += kLanes) {
    const F16 e = Exp(Load(scores + token) - Set(*highest));
    Store(scores + token, e);
    total = total + e;
  }
  *sum = Sum(total);
}

template <Type T, int H>
void AttendHeads(const AttentionShape& s, const Tiles<typename Kv<T>::Element>& tiles, int begin, int end,
                 const typename Kv<T>::Element* q, bool read_ahead, float* highest, float* sums, float* out) {
  alignas(64) float scores[H * kKvBlock];
  Scores<T, H>(tiles, begin / kLanes, (end + kLanes - 1) / kLanes, q, s.head_dim, read_ahead, scores);
  for (int h = 0; h < H; ++h) Soften(s, begin, end, scores + h * kKvBlock, highest + h, sums + h);
  Weigh<T, H>(tiles, begin, end, scores, s.head_dim, out);
}

// One row and one KV head over tokens [begin, end) of a block, into a fresh state.
template <Type T>
void AttendBlock(const AttentionShape& s, const Tiles<typename Kv<T>::Element>& tiles, int begin, int end,
                 const typename Kv<T>::Element* q, bool read_ahead, float* state) {
  const int64_t group = s.group();
  float* out = state + s.state_floats() - group * s.head_dim;
  for (int64_t h = 0; h < group;) {
    const int64_t left = group - h;
    const auto run = [&](auto count) {
      constexpr int kHeads = decltype(count)::value;
      AttendHeads<T, kHeads>(s, tiles, begin, end, q + h * s.head_dim, read_ahead && h == 0, state + h, state + group + h, out + h * s.head_dim);
      h += kHeads;
    };
    if constexpr (kMaxHeads >= 8) {
      if (left >= 8) { run(std::integral_constant<int, 8>{}); continue; }
      if (left >= 6) { run(std::integral_constant<int, 6>{}); continue; }
    }
    if (left >= 4) run(std::integral_constant<int, 4>{});
    else if (left == 3) run(std::integral_constant<int, 3>{});
    else if (left == 2) run(std::integral_constant<int, 2>{});
    else run(std::integral_constant<int, 1>{});
  }
}

inline void Merge(const AttentionShape& s, float* state, const float* later) {
  const int64_t group = s.group(), first = s.state_floats() - group * s.head_dim;
  for (int64_t h = 0; h < group; ++h) {
    const float top = state[h] > later[h] ? state[h] : later[h];
    const float keep = ScalarExp(state[h] - top), add = ScalarExp(later[h] - top);
    state[h] = top;
    state[group + h] = state[group + h] * keep + later[group + h] * add;
    float* x = state + first + h * s.head_dim;
    const float* y = later + first + h * s.head_dim;
    for (int64_t d = 0; d < s.head_dim; d += kLanes) Store(x + d, Fma(Load(y + d), Set(add), Load(x + d) * Set(keep)));
  }
}

template <Type T>
void AttendTyped(const AttentionShape& s, const QueryRows& rows, int64_t begin, int64_t end, float* states) {
  using Element = typename Kv<T>::Element;
  const int64_t total = rows.visible + rows.rows - 1, tile_elements = kLanes * s.head_dim, size = s.state_floats();
  const auto tile_at = [&](int64_t token) {
    const auto* head = reinterpret_cast<const Element*>(rows.cache + rows.table[token / s.page_size] * s.page_bytes());
    return head + token % s.page_size / kLanes * tile_elements;
  };
  alignas(64) float local[1024];
  float* later = size <= 1024 ? local : new float[size];
  bool held[kMaxQueryRows] = {};  // which rows have a state
  for (int64_t block = begin; block < end; ++block) {
    const int64_t start = block * kKvBlock;
    Tiles<Element> tiles;
    const int64_t reach = start + 2 * kKvBlock < total ? start + 2 * kKvBlock : total;  // pages behind it are not ours to look at
    for (int i = 0; i < 2 * kBlockTiles; ++i) {
      const int64_t token = start + i * kLanes;
      tiles.k[i] = tile_at(token < reach ? token : start);
      if (i < kBlockTiles) tiles.v[i] = tile_at(token < reach ? token : start) + s.page_size * s.head_dim;
    }
    bool first_reader = true;
    for (int64_t r = 0; r < rows.rows; ++r) {
      const TokenRange seen = SeenInBlock(s, rows.visible + r, block);
      if (seen.begin >= seen.end) continue;
      const auto* q = static_cast<const Element*>(rows.q) + r * rows.q_stride;
      float* state = states + r * size;
      AttendBlock<T>(s, tiles, (int)(seen.begin - start), (int)(seen.end - start), q, first_reader, held[r] ? later : state);
      if (held[r]) Merge(s, state, later);
      held[r] = true;
      first_reader = false;
    }
  }
  if (later != local) delete[] later;
}

inline void Attend(const AttentionShape& s, const QueryRows& rows, int64_t begin, int64_t end, float* states) {
  if (s.type == Type::kBf16) AttendTyped<Type::kBf16>(s, rows, begin, end, states);
  else AttendTyped<Type::kF32>(s, rows, begin, end, states);
}

template <Type T>
void FinishTyped(const AttentionShape& s, const float* states, int64_t rows, void* out) {
  using Element = typename Kv<T>::Element;
  const int64_t group = s.group(), size = s.state_floats();
  for (int64_t r = 0; r < rows; ++r) {
    const float* state = states + r * size;
    const float* x = state + size - group * s.head_dim;
    Element* y = static_cast<Element*>(out) + r * s.num_heads * s.head_dim;
    for (int64_t h = 0; h < group; ++h)
      for (int64_t d = h * s.head_dim; d < (h + 1) * s.head_dim; d += kLanes) Kv<T>::StoreOut(y + d, Load(x + d) / Set(state[group + h]));
  }
}

inline void Finish(const AttentionShape& s, const float* states, int64_t rows, void* out) {
  if (s.type == Type::kBf16) FinishTyped<Type::kBf16>(s, states, rows, out);
  else FinishTyped<Type::kF32>(s, states, rows, out);
}

template <Type T>
void WriteTyped(const AttentionShape& s, char* cache, const void* k, const void* v, int64_t stride, const int32_t* slots, int64_t begin, int64_t end) {
  using Element = typename Kv<T>::Element;
  constexpr int kDims = Kv<T>::kDims;
  for (int64_t t = begin; t < end; ++t) {
    if (slots[t] < 0) continue;
    const int64_t offset = slots[t] % s.page_size;
    for (int64_t h = 0; h < s.num_kv_heads; ++h) {
      auto* head = reinterpret_cast<Element*>(cache + slots[t] / s.page_size * s.page_bytes() + h * s.head_bytes());
      const auto* from = static_cast<const Element*>(k) + t * stride + h * s.head_dim;
      Element* to = head + offset / kLanes * kLanes * s.head_dim + offset % kLanes * kDims;
      for (int64_t d = 0; d < s.head_dim; d += kDims) std::memcpy(to + d * kLanes, from + d, kDims * sizeof(Element));
      from = static_cast<const Element*>(v) + t * stride + h * s.head_dim;
      std::memcpy(head + (s.page_size + offset) * s.head_dim, from, s.head_dim * sizeof(Element));
    }
  }
}

inline void WriteKv(const AttentionShape& s, char* cache, const void* k, const void* v, int64_t stride, const int32_t* slots, int64_t begin, int64_t end) {
  if (s.type == Type::kBf16) WriteTyped<Type::kBf16>(s, cache, k, v, stride, slots, begin, end);
  else WriteTyped<Type::kF32>(s, cache, k, v, stride, slots, begin, end);
}

}  // namespace FL_ISA
}  // namespace fairlane
