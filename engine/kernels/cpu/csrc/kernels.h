// What is compiled once per instruction set: a table of plain functions. Everything above it (who works on which unit,
// in which order) is compiled once, in ffi.cc.
#pragma once

#include <cstdint>

namespace fairlane {

enum class Type : int { kBf16, kF32, kInt8 };

inline int64_t Bytes(Type type) { return type == Type::kBf16 ? 2 : type == Type::kF32 ? 4 : 1; }

constexpr int64_t kMaxHeadDim = 256;

// One layer's attention. A head's share of a page is K, then V: K in tiles of 16 tokens with the tokens in the lanes
// (bf16: [S/16, D/2, 16, 2], f32: [S/16, D, 16], int8: [S/16, D/4, 16, 4]), V by token [S, D]. In int8 each of the two
// ends with the f32 scales of its S tokens. The cache is [P, K heads, 2, a part's elements].
struct AttentionShape {
  int64_t num_heads, num_kv_heads, head_dim, page_size;
  float scale;
  float soft_cap;  // 0: none
  int64_t window;  // 0: none
  Type type;       // of q, of k and v as given, and of the result
  Type kv;         // of the cache: `type`, or int8
  int64_t page_heads;  // KV heads of a page in the cache: `num_kv_heads`, or those of all layers that share it

  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t part_values_bytes() const { return page_size * head_dim * Bytes(kv); }
  int64_t part_bytes() const { return part_values_bytes() + (kv == Type::kInt8 ? page_size * (int64_t)sizeof(float) : 0); }
  int64_t head_bytes() const { return 2 * part_bytes(); }
  int64_t page_bytes() const { return page_heads * head_bytes(); }
  // A softmax state of one row and one KV head: maxima and sums of its query heads, then their weighted V.
  int64_t state_floats() const { return (2 * group() + 15) / 16 * 16 + group() * head_dim; }
};

// Tokens of KV that are weighed against one maximum. Every row is cut at multiples of it, counted from its first
// token, and the cuts are merged in order: whoever does the work, a row's arithmetic is the same.
constexpr int64_t kKvBlock = 256;

// Consecutive query rows of one sequence. Row r sees the tokens before `visible` + r (and after the window's start).
struct QueryRows {
  const void* q;         // first row, first head of the KV head; rows are `q_stride` elements apart
  int64_t q_stride;
  const char* cache;     // first page, the KV head's share
  const int32_t* table;  // the sequence's pages
  int64_t rows, visible;
};

constexpr int64_t kMaxQueryRows = 16;

struct TokenRange {
  int64_t begin, end;
};

// What a row that sees `visible` tokens sees of a block; empty when begin >= end.
inline TokenRange SeenInBlock(const AttentionShape& s, int64_t visible, int64_t block) {
  const int64_t start = block * kKvBlock, stop = start + kKvBlock;
  const int64_t oldest = s.window > 0 && visible > s.window ? visible - s.window : 0;
  return {oldest > start ? oldest : start, visible < stop ? visible : stop};
}

// A matrix [out, in], stored in groups of 64 outputs (those in blocks: of 16); `scales` by kind.
enum class WeightKind : int {
  kBf16,  // data [out/64, in/2, 64, 2] bf16
  kInt8,  // data [out/64, in/4, 64, 4], value + 128; scales f32 [out]
  kQ8,    // data [out/16, in/32, 8, 16, 4], value + 128; scales f16 [out/16, in/32, 16]
  kQ4,    // data [out/16, in/32, 4, 16, 4]: low nibbles k = 4j + i, high ones k = 16 + 4j + i; scales f16 [out/16, in/32, 2, 16]: d, m
};
constexpr int64_t kOutGroup = 64;

struct Weight {
  WeightKind kind;
  const char* data;
  const void* scales;
  int64_t out, in;  // out: a multiple of 64

  // A group's own data, where a step of k takes 256 bytes of it; null for the block formats.
  const char* group_data(int64_t group) const {
    if (kind == WeightKind::kBf16) return data + group * kOutGroup * in * 2;
    return kind == WeightKind::kInt8 ? data + group * kOutGroup * in : nullptr;
  }
};

// Activations as a kind of weight wants them.
struct Activations {
  const uint16_t* bf16;  // [T, in], for kBf16
  int8_t* quantized;     // [T, in]
  float* scale;          // [T, in / 32] (kQ8, kQ4) or [T]
  int32_t* sum;          // of the quantised values, like scale
};

struct Kernels {
  const char* name;

  // Tokens [begin, end) of k and v, rows `stride` elements apart, to their slots.
  void (*write_kv)(const AttentionShape&, char* cache, const void* k, const void* v, int64_t stride, const int32_t* slots, int64_t begin,
                   int64_t end);
  // KV blocks [begin, end), merged in order, into the rows' states (untouched for a row that sees none of them).
  void (*attend)(const AttentionShape&, const QueryRows&, int64_t begin, int64_t end, float* states);
  void (*merge)(const AttentionShape&, float* state, const float* later);
  // Weighted V over sums, stored as rows of the result (num_heads * head_dim apart).
  void (*finish)(const AttentionShape&, const float* states, int64_t rows, void* out);

  void (*quantize)(WeightKind, const uint16_t* x, int64_t in, int8_t* q, float* scale, int32_t* sum);
  // Rows [begin, end) of the activations times 64 outputs -> f32 [rows, 64]. `next`: the group_data that is wanted after
  // this, or null; it comes into the second-level cache meanwhile.
  void (*multiply)(const Weight&, const Activations&, int64_t group, int64_t begin, int64_t end, const char* next, float* out);

  // 64-wide ends of a product: from f32 [rows, 64] to rows of bf16 or f32.
  void (*store)(const float* tile, int64_t rows, int64_t width, const uint16_t* bias, const uint16_t* residual, int64_t stride, Type, void* out);
  void (*silu_gate)(const float* gate, const float* up, int64_t rows, const uint16_t* gate_bias, const uint16_t* up_bias, int64_t stride, uint16_t* out);
  void (*rms_norm)(const uint16_t* x, const float* weight, int64_t n, float eps, uint16_t* out);
  // Rotates pairs (i, i + n / 2) of one head in place, after an optional norm.
  void (*rotate)(uint16_t* x, const float* norm, float eps, const float* cos, const float* sin, int64_t n);
};

// Best first; null where this build or this machine has none.
const Kernels* Avx512Kernels();
const Kernels* Avx2Kernels();
const Kernels* PortableKernels();

}  // namespace fairlane
