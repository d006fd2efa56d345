// Drives the native kernels without JAX, for builds with sanitizers (tools/sanitize_kernels.sh): random shapes with
// every buffer exactly as large as it must be, one thread and three, whose answers must be the same bits.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "../../engine/kernels/cpu/csrc/cut.h"
#include "../../engine/kernels/cpu/csrc/run.h"
#include "../../engine/kernels/cpu/csrc/select.h"
#include "../../engine/kernels/cpu/csrc/stack.h"

using namespace fairlane;

namespace {

// A pool as XLA's: tasks run on its threads, in any order, perhaps late.
class Pool {
 public:
  explicit Pool(int64_t threads) : threads_(threads) {}
  ~Pool() {
    for (std::thread& thread : running_) thread.join();
  }
  int64_t num_threads() const { return threads_; }
  template <typename F>
  void Schedule(F&& f) {
    running_.emplace_back(std::forward<F>(f));
  }

 private:
  int64_t threads_;
  std::vector<std::thread> running_;
};

std::mt19937 draw(7);

int64_t Between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(draw); }

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

uint16_t RandomBf16() {
  const float x = std::normal_distribution<float>()(draw);
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits >> 16;
}

std::vector<char> RandomReals(int64_t count, Type type) {
  std::vector<char> bytes(count * Bytes(type));
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t half = RandomBf16();
    const uint32_t whole = (uint32_t)half << 16;
    if (type == Type::kBf16) std::memcpy(bytes.data() + 2 * i, &half, 2);
    else std::memcpy(bytes.data() + 4 * i, &whole, 4);
  }
  return bytes;
}

std::vector<uint16_t> RandomHalves(int64_t count) {
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = RandomBf16();
  return values;
}

AttentionShape RandomShape() {
  const int64_t kv_heads = Between(1, 3);
  const Type type = Between(0, 1) ? Type::kF32 : Type::kBf16;
  return {kv_heads * Between(1, 9), kv_heads, 16 * Between(4, 16), 16 * Between(1, 2), 0.1f, Between(0, 2) ? 0.0f : 10.0f,
          Between(0, 1) ? 0 : Between(1, 400), type, Between(0, 1) ? Type::kInt8 : type, kv_heads * Between(1, 3)};
}

// Which of a step's rows are not padding.
std::vector<char> RandomLiveRows(int64_t rows) {
  const int64_t kind = Between(0, 5);  // none, all in succession (which only then makes the longest ranges), or most of them
  std::vector<char> live(rows);
  for (char& row : live) row = kind == 1 || kind == 2 || (kind > 2 && Between(0, 4) != 0);
  return live;
}

// Sizes around those at which rows are cut into ranges and chunks among them.
int64_t RandomRows(int64_t most) {
  constexpr int64_t kEdges[] = {1, 6, 23, 24, 47, 48, 49, 50, 96, 127, 128, 129, 300};
  return std::min(most, Between(0, 1) ? Between(1, 60) : kEdges[Between(0, 12)]);
}

std::vector<char> Attend(const Kernels& kernels, const AttentionShape& s, const std::vector<char>& cache, const std::vector<char>& q,
                         const std::vector<AttentionTask>& tasks, int64_t threads) {
  Pool pool(threads);
  std::vector<char> out(q.size());
  Team team(pool, false);
  const AttentionPlan plan(kernels, s, tasks, team.threads());
  const AttentionBuffers buffers = {cache.data(), q.data(), s.num_heads * s.head_dim, out.data()};
  for (int layer = 0; layer < 2; ++layer) team.Run(plan.units(), [&](int64_t unit) { plan.Do(unit, buffers); });
  return out;
}

void CheckAttention(const Kernels& kernels) {
  const AttentionShape s = RandomShape();
  const int64_t pages = 60;
  std::vector<char> cache(pages * s.page_bytes());
  const int64_t tokens = pages * s.page_size, row = s.num_kv_heads * s.head_dim;
  std::vector<int32_t> slots(tokens);
  for (int64_t i = 0; i < tokens; ++i) slots[i] = i % 7 ? (int32_t)(tokens - 1 - i) : -1;
  const std::vector<char> k = RandomReals(tokens * row, s.type), v = RandomReals(tokens * row, s.type);
  kernels.write_kv(s, cache.data(), k.data(), v.data(), row, slots.data(), 0, tokens);

  std::vector<AttentionTask> tasks;
  std::vector<std::vector<int32_t>> tables;
  int64_t rows = 0;
  for (int64_t i = Between(1, 6); i > 0; --i) {
    const int64_t count = Between(0, 1) ? 1 : Between(1, kMaxQueryRows), visible = Between(1, 700);
    std::vector<int32_t> table(CeilDiv(visible + count - 1, s.page_size));
    for (int32_t& page : table) page = (int32_t)Between(0, pages - 1);
    tables.push_back(table);
    tasks.push_back({rows, count, visible, tables.back().data()});
    rows += count;
  }
  const std::vector<char> q = RandomReals(rows * s.num_heads * s.head_dim, s.type);
  Require(Attend(kernels, s, cache, q, tasks, 1) == Attend(kernels, s, cache, q, tasks, 3), "attention with one thread and with three");
}

struct OwnedWeight {
  Weight view;
  std::vector<char> data, scales;
};

OwnedWeight RandomWeight(WeightKind kind, int64_t out, int64_t in) {
  OwnedWeight w;
  w.data.resize(kind == WeightKind::kBf16 ? 0 : kind == WeightKind::kQ4 ? out * in / 2 : out * in);
  for (char& byte : w.data) byte = (char)Between(0, 255);
  if (kind == WeightKind::kBf16) w.data = RandomReals(out * in, Type::kBf16);
  if (kind == WeightKind::kInt8) w.scales = RandomReals(out, Type::kF32);
  w.scales.resize(kind == WeightKind::kQ8 ? out * in / 16 : kind == WeightKind::kQ4 ? out * in / 8 : w.scales.size());
  w.view = {kind, nullptr, nullptr, out, in};
  return w;
}

Weight View(const OwnedWeight& w) { return {w.view.kind, w.data.data(), w.scales.data(), w.view.out, w.view.in}; }

void CheckProduct(const Kernels& kernels, WeightKind kind) {
  const int64_t rows = RandomRows(300), in = 32 * Between(1, 9), out = 64 * Between(1, 4), width = out - Between(0, 63);
  const OwnedWeight w = RandomWeight(kind, out, in);
  const Weight w_view = View(w);
  const std::vector<uint16_t> x = RandomHalves(rows * in), bias = RandomHalves(width), residual = RandomHalves(rows * width);
  const std::vector<char> live = RandomLiveRows(rows);
  std::vector<std::vector<uint16_t>> answers;
  for (const int64_t threads : {1, 2, 3, 7, 0}) {
    Pool pool(threads);
    std::vector<uint16_t> y(rows * width);
    Team team(pool, false);
    const LiveRows live_rows(rows, team.threads(), [&](int64_t row) { return live[row]; });
    const Pass again = PassOf(w_view);
    RunProduct(team, kernels, w_view, x.data(), rows, live_rows, Between(0, 1) ? &again : nullptr, [&](int64_t group, int64_t first, int64_t count, const float* tile) {
      const int64_t start = group * kOutGroup, at = first * width + start;
      if (start < width)
        kernels.store(tile, count, std::min(kOutGroup, width - start), bias.data() + start, residual.data() + at, width, Type::kBf16, y.data() + at);
    });
    answers.push_back(y);
  }
  for (const auto& answer : answers) Require(answer == answers[0], "a product with one thread and with several");
}

void CheckStack(const Kernels& kernels, WeightKind kind) {
  const AttentionShape s = {6, 2, 32, 16, 0.17f, 0, Between(0, 1) ? 0 : 20, Type::kBf16, Between(0, 1) ? Type::kInt8 : Type::kBf16, 2};
  const int64_t hidden = 96, inner = 128, rows = RandomRows(129), width = (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
  const int64_t pages = CeilDiv(rows, s.page_size);
  const std::vector<float> norm(hidden, 1.0f), head_norm(s.head_dim, 1.0f), angles(rows * s.head_dim / 2, 0.6f);
  const OwnedWeight qkv = RandomWeight(kind, CeilDiv(width, kOutGroup) * kOutGroup, hidden), output = RandomWeight(kind, 128, s.num_heads * s.head_dim);
  const OwnedWeight gate_up = RandomWeight(kind, 2 * inner, hidden), down = RandomWeight(kind, 128, inner);
  const std::vector<uint16_t> bias = RandomHalves(2 * inner + width), x = RandomHalves(rows * hidden);
  std::vector<int32_t> slots(rows), table(pages);
  const std::vector<char> live = RandomLiveRows(rows);
  for (int64_t i = 0; i < rows; ++i) slots[i] = live[i] ? (int32_t)i : -1;
  for (int64_t i = 0; i < pages; ++i) table[i] = (int32_t)i;
  std::vector<std::vector<uint16_t>> answers;
  for (const int64_t threads : {1, 2, 3, 7, 0}) {
    Pool pool(threads);
    std::vector<uint16_t> state = x;
    std::vector<char> cache(pages * s.page_bytes());
    const Step step = {s, rows, hidden, inner, 1e-5f, angles.data(), angles.data(), slots.data(), state.data()};
    std::vector<AttentionTask> tasks;
    for (int64_t first = 0; first < rows; first += kMaxQueryRows)
      tasks.push_back({first, std::min(kMaxQueryRows, rows - first), first + 1, table.data()});
    Team team(pool, false);
    const AttentionPlan plan(kernels, s, tasks, team.threads());
    Stack stack(team, kernels, step, plan);
    stack.Run({norm.data(), View(qkv), bias.data(), head_norm.data(), head_norm.data(), View(output), bias.data(), norm.data(), View(gate_up),
               bias.data(), View(down), bias.data(), cache.data()});
    answers.push_back(state);
  }
  for (const auto& answer : answers) Require(answer == answers[0], "a layer with one thread and with several");
}

// A cut that is wanted while a step asks layer after layer: it is made once, keeps the decodes, and the next step begins without one.
void CheckCut() {
  for (int i = 0; i < 200; ++i) {
    std::thread newcomer([] { TheCut().Want(); });
    while (!TheCut().Due()) std::this_thread::yield();
    Require(TheCut().Keeps(3), "a cut that is only wanted leaves nothing out");
    TheCut().Make(3);
    newcomer.join();
    Require(TheCut().Keeps(2) && !TheCut().Keeps(3), "a cut keeps the decodes");
    Require(!TheCut().Due(), "a cut is made once");
    Require(TheCut().Settle(), "a wanted cut is made");
    Require(!TheCut().Due() && !TheCut().Settle() && TheCut().Keeps(3), "a settled cut is gone");
  }
}

}  // namespace

int main() {
  CheckCut();
  for (int level = 0; level < 3; ++level) {
    const Kernels* kernels = KernelsAt(level);
    if (!kernels) continue;
    for (int i = 0; i < 40; ++i) CheckAttention(*kernels);
    for (int kind = 0; kind < 4; ++kind)
      for (int i = 0; i < 15; ++i) {
        CheckProduct(*kernels, static_cast<WeightKind>(kind));
        CheckStack(*kernels, static_cast<WeightKind>(kind));
      }
    std::printf("%s: clean\n", kernels->name);
  }
}
