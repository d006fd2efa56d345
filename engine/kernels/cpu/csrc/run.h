// Who does what: cuts a call into units of work and runs them on a team. Knows no instruction set.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels.h"
#include "team.h"

namespace fairlane {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Query rows of one sequence: `first_row` of q and of the result.
struct AttentionTask {
  int64_t first_row, rows, visible;
  const int32_t* table;
};

// Where a layer's attention reads and writes: q rows are `q_stride` elements apart, the result is dense.
struct AttentionBuffers {
  const char* cache;
  const char* q;
  int64_t q_stride;
  char* out;
};

// How the attention of a step is cut into units; the same for all its layers. A long task is cut along its KV blocks so
// that the threads end together; its parts are merged in block order by whoever ends last, which is the very arithmetic
// of an uncut task.
class AttentionPlan {
 public:
  AttentionPlan(const Kernels& kernels, const AttentionShape& shape, std::vector<AttentionTask> tasks, int64_t threads)
      : kernels_(kernels), shape_(shape), tasks_(std::move(tasks)) {
    int64_t total = 0, floats = 0;
    for (const AttentionTask& task : tasks_) total += Blocks(task).second * shape.num_kv_heads;
    const int64_t longest = threads == 1 ? total : CeilDiv(total, 8 * threads);
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const auto [first, count] = Blocks(tasks_[i]);
      const bool cut = count > longest && count > 1;
      for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
        const int64_t join = cut ? (int64_t)joins_.size() : -1;
        if (cut) {
          joins_.push_back({floats, count});
          floats += count * tasks_[i].rows * shape.state_floats();
        }
        for (int64_t part = 0; part < (cut ? count : 1); ++part)
          units_.push_back({(int64_t)i, head, first + part, cut ? first + part + 1 : first + count, join});
      }
    }
    std::stable_sort(units_.begin(), units_.end(), [&](const Unit& a, const Unit& b) { return Cost(a) > Cost(b); });
    left_.reset(new std::atomic<int64_t>[joins_.size()]);
    for (size_t i = 0; i < joins_.size(); ++i) left_[i].store(joins_[i].parts, std::memory_order_relaxed);
    states_.reset(new float[floats]);
  }

  int64_t units() const { return (int64_t)units_.size(); }

  void Do(int64_t index, const AttentionBuffers& buffers) const {
    const Unit& unit = units_[index];
    const AttentionTask& task = tasks_[unit.task];
    const int64_t bytes = Bytes(shape_.type), head = unit.head * shape_.group() * shape_.head_dim;
    const int64_t out_stride = shape_.num_heads * shape_.head_dim * bytes;
    const QueryRows rows = {buffers.q + (task.first_row * buffers.q_stride + head) * bytes,
                            buffers.q_stride,
                            buffers.cache + unit.head * shape_.head_bytes(),
                            task.table,
                            task.rows,
                            task.visible};
    char* out = buffers.out + task.first_row * out_stride + head * bytes;
    if (unit.join < 0) {
      std::unique_ptr<float[]> states(new float[task.rows * shape_.state_floats()]);
      kernels_.attend(shape_, rows, unit.begin, unit.end, states.get());
      kernels_.finish(shape_, states.get(), task.rows, out);
      return;
    }
    const Join& join = joins_[unit.join];
    const int64_t first = Blocks(task).first, part_floats = task.rows * shape_.state_floats();
    float* states = states_.get() + join.floats;
    kernels_.attend(shape_, rows, unit.begin, unit.end, states + (unit.begin - first) * part_floats);
    if (left_[unit.join].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    left_[unit.join].store(join.parts, std::memory_order_relaxed);  // ready for the next layer
    for (int64_t r = 0; r < task.rows; ++r) {
      float* whole = nullptr;
      for (int64_t part = 0; part < join.parts; ++part) {
        const TokenRange seen = SeenInBlock(shape_, task.visible + r, first + part);
        float* state = states + part * part_floats + r * shape_.state_floats();
        if (seen.begin >= seen.end) continue;
        if (whole) kernels_.merge(shape_, whole, state);
        else whole = state;
      }
      kernels_.finish(shape_, whole, 1, out + r * out_stride);
    }
  }

 private:
  struct Unit {
    int64_t task, head, begin, end, join;
  };
  struct Join {
    int64_t floats, parts;
  };

  // First KV block that a row of the task sees, and how many there are.
  std::pair<int64_t, int64_t> Blocks(const AttentionTask& task) const {
    const int64_t oldest = shape_.window > 0 ? std::max<int64_t>(0, task.visible - shape_.window) : 0;
    const int64_t first = oldest / kKvBlock;
    return {first, CeilDiv(task.visible + task.rows - 1, kKvBlock) - first};
  }
  int64_t Cost(const Unit& unit) const { return (unit.end - unit.begin) * tasks_[unit.task].rows; }

  const Kernels& kernels_;
  const AttentionShape shape_;
  const std::vector<AttentionTask> tasks_;
  std::vector<Unit> units_;
  std::vector<Join> joins_;
  std::unique_ptr<std::atomic<int64_t>[]> left_;
  std::unique_ptr<float[]> states_;
};

struct RowRange {
  int64_t begin, end;
};

// A step's rows for which is_live(row) holds: what lies between costs nothing. Products cut them into chunks and do chunk after
// chunk, so that the threads of a team divide the rows where there are enough of them, as all other phases do, and the outputs
// where there are not.
class LiveRows {
 public:
  static constexpr int64_t kRangeRows = 48;  // what a product's results stay in the first-level cache for

  template <typename F>
  LiveRows(int64_t rows, int64_t threads, const F& is_live) {
    for (int64_t row = 0; row < rows; ++row)
      if (is_live(row)) rows_.push_back(row);
    const int64_t sharers = std::clamp<int64_t>(count() / kLeastChunkRows, 1, threads);
    chunks_.resize(sharers * CeilDiv(count(), sharers * kMostChunkRows));
    for (int64_t c = 0; c < chunks(); ++c)
      for (int64_t i = count() * c / chunks(); i < count() * (c + 1) / chunks(); ++i) Append(rows_[i], &chunks_[c]);
  }

  int64_t count() const { return (int64_t)rows_.size(); }
  int64_t row(int64_t index) const { return rows_[index]; }
  int64_t chunks() const { return (int64_t)chunks_.size(); }
  // A chunk's rows, in ranges of at most kRangeRows.
  const std::vector<RowRange>& chunk(int64_t index) const { return chunks_[index]; }

 private:
  static constexpr int64_t kLeastChunkRows = 24;  // with fewer, a thread would read weights faster than memory gives them
  static constexpr int64_t kMostChunkRows = 128;  // their activations stay in the second-level cache

  static void Append(int64_t row, std::vector<RowRange>* ranges) {
    const bool goes_on = !ranges->empty() && ranges->back().end == row && row - ranges->back().begin < kRangeRows;
    if (goes_on) ranges->back().end = row + 1;
    else ranges->push_back({row, row + 1});
  }

  std::vector<int64_t> rows_;
  std::vector<std::vector<RowRange>> chunks_;
};

// Rows of activations, quantised where the weight wants it.
class PreparedRows {
 public:
  PreparedRows(const Weight& weight, const uint16_t* x, int64_t rows) : weight_(weight), view_{x, nullptr, nullptr, nullptr} {
    if (weight.kind == WeightKind::kBf16) return;
    blocks_ = weight.kind == WeightKind::kInt8 ? 1 : weight.in / 32;
    quantized_.reset(new int8_t[rows * weight.in]);
    scale_.reset(new float[rows * blocks_]);
    sum_.reset(new int32_t[rows * blocks_]);
    view_ = {x, quantized_.get(), scale_.get(), sum_.get()};
  }
  void Prepare(Team& team, const Kernels& kernels, const LiveRows& live) const {
    if (quantized_) team.Run(live.count(), [&](int64_t i) { Quantize(kernels, live.row(i)); });
  }
  const Activations& view() const { return view_; }

 private:
  void Quantize(const Kernels& kernels, int64_t row) const {
    kernels.quantize(weight_.kind, view_.bf16 + row * weight_.in, weight_.in, view_.quantized + row * weight_.in, view_.scale + row * blocks_,
                     view_.sum + row * blocks_);
  }

  Weight weight_;
  Activations view_;
  int64_t blocks_ = 0;
  std::unique_ptr<int8_t[]> quantized_;
  std::unique_ptr<float[]> scale_;
  std::unique_ptr<int32_t[]> sum_;
};

// A phase that goes over a weight: `groups` units for each chunk of rows, the first of which read group 0 and so on.
struct Pass {
  const Weight* weight;
  int64_t groups;
};

inline Pass PassOf(const Weight& weight) { return {&weight, weight.out / kOutGroup}; }

// What is wanted after a unit of `pass` by whoever does it: the data of its share's next unit, or of its first one in the pass
// that comes `after`. Null where that is not known.
inline const char* DataBehind(const Team& team, const LiveRows& live, const Pass& pass, int64_t unit, const Pass* after) {
  const int64_t units = pass.groups * live.chunks(), thread = team.ShareOf(unit, units);
  if (unit + 1 < team.ShareBegin(thread + 1, units)) return pass.weight->group_data((unit + 1) % pass.groups);
  return after ? after->weight->group_data(team.ShareBegin(thread, after->groups * live.chunks()) % after->groups) : nullptr;
}

// Runs tile(group, range, next) for each group of a pass at each range of the live rows; `next` is what `multiply` is to fetch.
template <typename F>
void RunPass(Team& team, const LiveRows& live, const Pass& pass, const Pass* after, const F& tile) {
  team.Run(pass.groups * live.chunks(), [&](int64_t unit) {
    const char* next = DataBehind(team, live, pass, unit, after);
    for (const RowRange& range : live.chunk(unit / pass.groups)) tile(unit % pass.groups, range, next);
  });
}

// Runs end(group, first_row, rows, f32 tile [rows, 64]) on every tile of x @ weight.T at the live ones of `rows`.
template <typename End>
void RunProduct(Team& team, const Kernels& kernels, const Weight& weight, const uint16_t* x, int64_t rows, const LiveRows& live,
                const Pass* after, const End& end) {
  const PreparedRows prepared(weight, x, rows);
  prepared.Prepare(team, kernels, live);
  RunPass(team, live, PassOf(weight), after, [&](int64_t group, const RowRange& range, const char* next) {
    alignas(64) float tile[LiveRows::kRangeRows * kOutGroup];
    kernels.multiply(weight, prepared.view(), group, range.begin, range.end, next, tile);
    end(group, range.begin, range.end - range.begin, tile);
  });
}

}  // namespace fairlane
