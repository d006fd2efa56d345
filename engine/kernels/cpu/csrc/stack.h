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
      : team_(team),
        kernels_(kernels),
        step_(step),
        attention_(attention),
        live_(step.rows, team.threads(), [&](int64_t row) { return step.slots[row] >= 0; }) {
    const AttentionShape& s = step.shape;
    qkv_width_ = (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
    normed_.reset(new uint16_t[step.rows * step.hidden]);
    qkv_.reset(new uint16_t[step.rows * qkv_width_]);
    attended_.reset(new uint16_t[step.rows * s.num_heads * s.head_dim]());
    gated_.reset(new uint16_t[step.rows * step.intermediate]);
  }

  void Run(const Layer& layer) {
    const Pass output = PassOf(layer.output), gate = {&layer.gate_up, step_.intermediate / kOutGroup};
    Norm(layer.input_norm);
    Project(layer.qkv, normed_.get(), layer.qkv_bias, nullptr, qkv_width_, &output, qkv_.get());
    RotateAndWrite(layer);
    const AttentionBuffers buffers = {layer.cache, reinterpret_cast<const char*>(qkv_.get()), qkv_width_, reinterpret_cast<char*>(attended_.get())};
    team_.Run(attention_.units(), [&](int64_t unit) { attention_.Do(unit, buffers); });
    Project(layer.output, attended_.get(), layer.output_bias, step_.state, step_.hidden, &gate, step_.state);
    Norm(layer.post_norm);
    Gate(layer, gate);
    Project(layer.down, gated_.get(), layer.down_bias, step_.state, step_.hidden, nullptr, step_.state);
  }

 private:
  static constexpr int64_t kUnitTokens = 4;  // rows of the cheap phases' units

  // Calls f(row) for all rows but padding, a few to a unit.
  template <typename F>
  void EachRow(const F& f) {
    team_.Run(CeilDiv(live_.count(), kUnitTokens), [&](int64_t unit) {
      for (int64_t i = unit * kUnitTokens; i < std::min(live_.count(), (unit + 1) * kUnitTokens); ++i) f(live_.row(i));
    });
  }

  void Norm(const float* weight) {
    EachRow([&](int64_t row) { kernels_.rms_norm(step_.state + row * step_.hidden, weight, step_.hidden, step_.eps, normed_.get() + row * step_.hidden); });
  }

  void Project(const Weight& weight, const uint16_t* x, const uint16_t* bias, const uint16_t* residual, int64_t width, const Pass* after,
               uint16_t* y) {
    RunProduct(team_, kernels_, weight, x, step_.rows, live_, after, [&](int64_t group, int64_t first, int64_t count, const float* tile) {
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
  void Gate(const Layer& layer, const Pass& pass) {
    const Weight& weight = layer.gate_up;
    const PreparedRows prepared(weight, normed_.get(), step_.rows);
    prepared.Prepare(team_, kernels_, live_);
    const Pass down = PassOf(layer.down);
    const int64_t width = step_.intermediate;
    const uint16_t* bias = layer.gate_up_bias;
    RunPass(team_, live_, pass, &down, [&](int64_t group, const RowRange& range, const char* next) {
      const int64_t start = group * kOutGroup;
      alignas(64) float gate[LiveRows::kRangeRows * kOutGroup], up[LiveRows::kRangeRows * kOutGroup];
      kernels_.multiply(weight, prepared.view(), group, range.begin, range.end, weight.group_data(pass.groups + group), gate);
      kernels_.multiply(weight, prepared.view(), pass.groups + group, range.begin, range.end, next, up);
      kernels_.silu_gate(gate, up, range.end - range.begin, bias ? bias + start : nullptr, bias ? bias + width + start : nullptr, width,
                         gated_.get() + range.begin * width + start);
    });
  }

  Team& team_;
  const Kernels& kernels_;
  const Step& step_;
  const AttentionPlan& attention_;
  int64_t qkv_width_;
  LiveRows live_;  // all rows but padding
  std::unique_ptr<uint16_t[]> normed_, qkv_, attended_, gated_;
};

}  // namespace fairlane
