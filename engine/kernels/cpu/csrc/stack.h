// All decoder layers of a step in one call: the phases of run.h one after another on one team. What XLA would spread
// over a dozen small programs a layer (norms, rotation, residuals, gates) happens here while the rows are in the cache,
// and no row's result depends on how many there are.
#pragma once

#include "run.h"

namespace fairlane {

// One layer's weights; null where the architecture has no such tensor. Norms are f32, biases bf16.
struct Layer {
  const float* input_norm;
  Weight qkv;
  const uint16_t* qkv_bias;
  const float* q_norm;
  const float* k_norm;
  Weight output;
  const uint16_t* output_bias;
  const float* post_norm;
  Weight gate_up;
  const uint16_t* gate_up_bias;
  Weight down;
  const uint16_t* down_bias;
  char* cache;
};

struct Step {
  AttentionShape shape;
  int64_t rows, hidden, intermediate;
  float eps;
  const float* cos;  // [T, D / 2]
  const float* sin;
  const int32_t* slots;  // [T]; below 0: padding, whose state is left as it is
  uint16_t* state;       // [T, hidden]: in and out
};

class Stack {
 public:
  Stack(Team& team, const Kernels& kernels, const Step& step, const AttentionPlan& attention)
      : team_(team), kernels_(kernels), step_(step), attention_(attention) {
    const AttentionShape& s = step.shape;
    qkv_width_ = (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
    ranges_ = LiveRanges(step.rows, [&](int64_t row) { return step.slots[row] >= 0; });
    normed_.reset(new uint16_t[step.rows * step.hidden]);
    qkv_.reset(new uint16_t[step.rows * qkv_width_]);
    attended_.reset(new uint16_t[step.rows * s.num_heads * s.head_dim]());
    gated_.reset(new uint16_t[step.rows * step.intermediate]);
  }

  void Run(const Layer& layer) {
    Norm(layer.input_norm);
    Project(layer.qkv, normed_.get(), layer.qkv_bias, nullptr, qkv_width_, qkv_.get());
    RotateAndWrite(layer);
    const AttentionBuffers buffers = {layer.cache, reinterpret_cast<const char*>(qkv_.get()), qkv_width_, reinterpret_cast<char*>(attended_.get())};
    team_.Run(attention_.units(), [&](int64_t unit) { attention_.Do(unit, buffers); });
    Project(layer.output, attended_.get(), layer.output_bias, step_.state, step_.hidden, step_.state);
    Norm(layer.post_norm);
    Gate(layer);
    Project(layer.down, gated_.get(), layer.down_bias, step_.state, step_.hidden, step_.state);
  }

 private:
  static constexpr int64_t kUnitTokens = 4;  // rows of the cheap phases' units

  // Calls f(row) for all rows but padding, a few to a unit.
  template <typename F>
  void EachRow(const F& f) {
    team_.Run(CeilDiv(step_.rows, kUnitTokens), [&](int64_t unit) {
      for (int64_t row = unit * kUnitTokens; row < std::min(step_.rows, (unit + 1) * kUnitTokens); ++row)
        if (step_.slots[row] >= 0) f(row);
    });
  }

  void Norm(const float* weight) {
    EachRow([&](int64_t row) { kernels_.rms_norm(step_.state + row * step_.hidden, weight, step_.hidden, step_.eps, normed_.get() + row * step_.hidden); });
  }

  void Project(const Weight& weight, const uint16_t* x, const uint16_t* bias, const uint16_t* residual, int64_t width, uint16_t* y) {
    RunProduct(team_, kernels_, weight, x, step_.rows, ranges_, [&](int64_t group, int64_t first, int64_t count, const float* tile) {
      const int64_t start = group * kOutGroup, at = first * width + start;
      if (start >= width) return;
      kernels_.store(tile, count, std::min(kOutGroup, width - start), bias ? bias + start : nullptr, residual ? residual + at : nullptr, width,
                     Type::kBf16, y + at);
    });
  }

  void RotateAndWrite(const Layer& layer) {
    const AttentionShape& s = step_.shape;
    const int64_t half = s.head_dim / 2;
    uint16_t* k = qkv_.get() + s.num_heads * s.head_dim;
    EachRow([&](int64_t row) {
      for (int64_t head = 0; head < s.num_heads + s.num_kv_heads; ++head)
        kernels_.rotate(qkv_.get() + row * qkv_width_ + head * s.head_dim, head < s.num_heads ? layer.q_norm : layer.k_norm, step_.eps,
                        step_.cos + row * half, step_.sin + row * half, s.head_dim);
      kernels_.write_kv(s, layer.cache, k, k + s.num_kv_heads * s.head_dim, qkv_width_, step_.slots, row, row + 1);
    });
  }

  // silu(gate) * up: a unit computes the same 64 outputs of both.
  void Gate(const Layer& layer) {
    const int64_t width = step_.intermediate, up_group = width / kOutGroup, chunks = (int64_t)ranges_.size();
    const PreparedRows prepared(layer.gate_up, normed_.get(), step_.rows);
    prepared.Prepare(team_, kernels_, ranges_);
    const uint16_t* bias = layer.gate_up_bias;
    team_.Run(up_group * chunks, [&](int64_t unit) {
      const int64_t group = unit / chunks, first = ranges_[unit % chunks].begin, count = ranges_[unit % chunks].end - first;
      alignas(64) float gate[kUnitRows * kOutGroup], up[kUnitRows * kOutGroup];
      kernels_.multiply(layer.gate_up, prepared.view(), group, first, first + count, gate);
      kernels_.multiply(layer.gate_up, prepared.view(), up_group + group, first, first + count, up);
      const int64_t start = group * kOutGroup;
      kernels_.silu_gate(gate, up, count, bias ? bias + start : nullptr, bias ? bias + width + start : nullptr, width,
                         gated_.get() + first * width + start);
    });
  }

  Team& team_;
  const Kernels& kernels_;
  const Step& step_;
  const AttentionPlan& attention_;
  int64_t qkv_width_;
  std::vector<RowRange> ranges_;  // all rows but padding
  std::unique_ptr<uint16_t[]> normed_, qkv_, attended_, gated_;
};

}  // namespace fairlane
