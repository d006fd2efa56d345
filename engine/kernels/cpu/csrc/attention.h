// Paged attention over the lanes of simd.h: scores with 16 tokens in the lanes (no sum across lanes), weighted V with
// 16 dimensions in the lanes. An online softmax over blocks of kKvBlock tokens (Milakov & Gimelshein, 2018; the split
// over KV is Flash-Decoding's, Dao et al., 2023).
#pragma once

#include <type_traits>

#include "kv.h"

namespace fairlane {
namespace FL_ISA {

constexpr int kMaxHeads = kMaxAccumulators < 8 ? 4 : 8;  // query heads that share one pass over K or V

// Scores of tiles [first, first + N) for H heads, f32 [H, kKvBlock]. Reads ahead: the tiles behind these, and their V.
template <Type T, int H, int N>
FL_INLINE void ScoreTiles(const Tiles<typename Kv<T>::Element>& tiles, int first, const typename Kv<T>::Query* q, const float* q_scales,
                          int64_t head_dim, bool read_ahead, float* scores) {
  using P = Kv<T>;
  decltype(P::Start()) acc[N][H];
  for (int n = 0; n < N; ++n)
    for (int h = 0; h < H; ++h) acc[n][h] = P::Start();
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
    for (int h = 0; h < H; ++h)
      Store(scores + h * kKvBlock + (first + n) * kLanes, Rescaled(acc[n][h], tiles.k_scale[first + n], q_scales + h));
}

template <Type T, int H>
void Scores(const Tiles<typename Kv<T>::Element>& tiles, int begin, int end, const typename Kv<T>::Query* q, const float* q_scales,
            int64_t head_dim, bool read_ahead, float* scores) {
  constexpr int kWide = kMaxAccumulators / H > 4 ? 4 : (kMaxAccumulators / H < 1 ? 1 : kMaxAccumulators / H);
  int tile = begin;
  for (; tile + kWide <= end; tile += kWide) ScoreTiles<T, H, kWide>(tiles, tile, q, q_scales, head_dim, read_ahead, scores);
  for (; tile < end; ++tile) ScoreTiles<T, H, 1>(tiles, tile, q, q_scales, head_dim, read_ahead, scores);
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
                 const typename Kv<T>::Query* q, const float* q_scales, bool read_ahead, float* highest, float* sums, float* out) {
  alignas(64) float scores[H * kKvBlock];
  const int first = begin / kLanes, last = (end + kLanes - 1) / kLanes;
  Scores<T, H>(tiles, first, last, q, q_scales, s.head_dim, read_ahead, scores);
  for (int h = 0; h < H; ++h) {
    float* weights = scores + h * kKvBlock;
    Soften(s, begin, end, weights, highest + h, sums + h);
    if constexpr (T == Type::kInt8)
      for (int tile = first; tile < last; ++tile) Store(weights + tile * kLanes, Load(weights + tile * kLanes) * Load(tiles.v_scale[tile]));
  }
  Weigh<T, H>(tiles, begin, end, scores, s.head_dim, out);
}

// One row and one KV head over tokens [begin, end) of a block, into a fresh state.
template <Type T>
void AttendBlock(const AttentionShape& s, const Tiles<typename Kv<T>::Element>& tiles, int begin, int end,
                 const typename Kv<T>::Query* q, const float* q_scales, bool read_ahead, float* state) {
  const int64_t group = s.group();
  float* out = state + s.state_floats() - group * s.head_dim;
  for (int64_t h = 0; h < group;) {
    const int64_t left = group - h;
    const auto run = [&](auto count) {
      constexpr int kHeads = decltype(count)::value;
      AttendHeads<T, kHeads>(s, tiles, begin, end, q + h * s.head_dim, q_scales + h, read_ahead && h == 0, state + h, state + group + h,
                             out + h * s.head_dim);
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

// Tiles of the block that starts at token `start`; those it does not have are its first.
template <Type T>
Tiles<typename Kv<T>::Element> TilesOf(const AttentionShape& s, const QueryRows& rows, int64_t start) {
  using Element = typename Kv<T>::Element;
  const int64_t total = rows.visible + rows.rows - 1;
  const int64_t reach = start + 2 * kKvBlock < total ? start + 2 * kKvBlock : total;  // pages behind it are not ours to look at
  Tiles<Element> tiles;
  for (int i = 0; i < 2 * kBlockTiles; ++i) {
    const int64_t wanted = start + i * kLanes, token = wanted < reach ? wanted : start, tile = token % s.page_size / kLanes;
    const char* k = rows.cache + rows.table[token / s.page_size] * s.page_bytes();
    const char* v = k + s.part_bytes();
    tiles.k[i] = reinterpret_cast<const Element*>(k) + tile * kLanes * s.head_dim;
    if (i >= kBlockTiles) continue;
    tiles.v[i] = reinterpret_cast<const Element*>(v) + tile * kLanes * s.head_dim;
    if constexpr (T == Type::kInt8) {
      tiles.k_scale[i] = reinterpret_cast<const float*>(k + s.part_values_bytes()) + tile * kLanes;
      tiles.v_scale[i] = reinterpret_cast<const float*>(v + s.part_values_bytes()) + tile * kLanes;
    } else {
      tiles.k_scale[i] = tiles.v_scale[i] = nullptr;
    }
  }
  return tiles;
}

template <Type T>
void AttendTyped(const AttentionShape& s, const QueryRows& rows, int64_t begin, int64_t end, float* states) {
  const Queries<T> queries(s, rows);
  const int64_t size = s.state_floats();
  alignas(64) float local[1024];
  float* later = size <= 1024 ? local : new float[size];
  bool held[kMaxQueryRows] = {};  // which rows have a state
  for (int64_t block = begin; block < end; ++block) {
    const int64_t start = block * kKvBlock;
    const auto tiles = TilesOf<T>(s, rows, start);
    bool first_reader = true;
    for (int64_t r = 0; r < rows.rows; ++r) {
      const TokenRange seen = SeenInBlock(s, rows.visible + r, block);
      if (seen.begin >= seen.end) continue;
      float* state = states + r * size;
      AttendBlock<T>(s, tiles, (int)(seen.begin - start), (int)(seen.end - start), queries.values(r), queries.scales(r), first_reader,
                     held[r] ? later : state);
      if (held[r]) Merge(s, state, later);
      held[r] = true;
      first_reader = false;
    }
  }
  if (later != local) delete[] later;
}

inline void Attend(const AttentionShape& s, const QueryRows& rows, int64_t begin, int64_t end, float* states) {
  if (s.kv == Type::kInt8) AttendTyped<Type::kInt8>(s, rows, begin, end, states);
  else if (s.kv == Type::kBf16) AttendTyped<Type::kBf16>(s, rows, begin, end, states);
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

}  // namespace FL_ISA
}  // namespace fairlane
