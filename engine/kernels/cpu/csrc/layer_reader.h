// Finds a layer's tensors in the buffer that holds many layers' (`NativeStack` in engine/kernels/cpu/decoder.py).
#pragma once

#include "stack.h"

namespace fairlane {

constexpr size_t kLayerTensors = 16;  // in the order of `Layer`; a matrix is two: data, scales

// A layer's tensors, found by their offsets in one buffer; below 0: the architecture has no such tensor.
class LayerReader {
 public:
  LayerReader(const char* base, int64_t size, const int64_t* offsets) : base_(base), size_(size), offset_(offsets) {}

  template <typename T>
  const T* Vector(int64_t count) {
    return reinterpret_cast<const T*>(Take(count * (int64_t)sizeof(T)));
  }
  Weight Matrix(int32_t kind, int64_t in, int64_t out) {
    Weight weight = {static_cast<WeightKind>(kind), nullptr, nullptr, CeilDiv(out, kOutGroup) * kOutGroup, in};
    const int64_t values = weight.out * in, blocks = values / 32;
    constexpr int64_t kHalf = 2;
    switch (weight.kind) {
      case WeightKind::kBf16: return Read(weight, values * 2, 0);
      case WeightKind::kInt8: return Read(weight, values, weight.out * (int64_t)sizeof(float));
      case WeightKind::kQ8: return Read(weight, values, blocks * kHalf);
      case WeightKind::kQ4: return Read(weight, values / 2, 2 * blocks * kHalf);
    }
    is_whole_ = false;
    return weight;
  }
  bool is_whole() const { return is_whole_; }

 private:
  Weight Read(Weight weight, int64_t data_bytes, int64_t scale_bytes) {
    weight.data = Take(data_bytes);
    weight.scales = Take(scale_bytes);
    is_whole_ = is_whole_ && weight.data && (weight.scales || scale_bytes == 0);
    return weight;
  }
  const char* Take(int64_t bytes) {
    const int64_t offset = *offset_++;
    if (offset < 0) return nullptr;
    is_whole_ = is_whole_ && offset + bytes <= size_;
    return base_ + offset;
  }

  const char* base_;
  int64_t size_;
  const int64_t* offset_;
  bool is_whole_ = true;
};

// False when a tensor lies outside its buffer or a necessary one is missing.
inline bool ReadLayer(LayerReader reader, const Step& step, const int32_t* kinds, char* cache, Layer* layer) {
  const AttentionShape& s = step.shape;
  const int64_t width = s.num_heads * s.head_dim, qkv_width = width + 2 * s.num_kv_heads * s.head_dim;
  layer->input_norm = reader.Vector<float>(step.hidden);
  layer->qkv = reader.Matrix(kinds[0], step.hidden, qkv_width);
  layer->qkv_bias = reader.Vector<uint16_t>(qkv_width);
  layer->q_norm = reader.Vector<float>(s.head_dim);
  layer->k_norm = reader.Vector<float>(s.head_dim);
  layer->output = reader.Matrix(kinds[1], width, step.hidden);
  layer->output_bias = reader.Vector<uint16_t>(step.hidden);
  layer->post_norm = reader.Vector<float>(step.hidden);
  layer->gate_up = reader.Matrix(kinds[2], step.hidden, 2 * step.intermediate);
  layer->gate_up_bias = reader.Vector<uint16_t>(2 * step.intermediate);
  layer->down = reader.Matrix(kinds[3], step.intermediate, step.hidden);
  layer->down_bias = reader.Vector<uint16_t>(step.hidden);
  layer->cache = cache;
  return reader.is_whole() && layer->input_norm && layer->post_norm;
}

}  // namespace fairlane
