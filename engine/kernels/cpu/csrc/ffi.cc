// The calls that JAX makes: decodes buffers, checks what could read or write out of bounds, hands over to run.h.
#include <optional>
#include <string>

#include "cut.h"
#include "layer_reader.h"
#include "run.h"
#include "select.h"
#include "stack.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace fairlane {
namespace {

ffi::Error Invalid(const std::string& what) { return ffi::Error(ffi::ErrorCode::kInvalidArgument, "fairlane cpu kernel: " + what); }

bool TypeOf(const ffi::AnyBuffer& buffer, Type* type) {
  if (buffer.element_type() == ffi::DataType::BF16) *type = Type::kBf16;
  else if (buffer.element_type() == ffi::DataType::F32) *type = Type::kF32;
  else return false;
  return true;
}

// cache [P, K, 2, S * D] of the rows' type, or [P, K, 2, S * (D + 4)] int8; `rows` are q or k, any rank.
ffi::Error ShapeOf(const ffi::AnyBuffer& cache, const ffi::AnyBuffer& rows, int64_t heads, int64_t head_dim, float scale, float soft_cap,
                   int64_t window, AttentionShape* s, int64_t kv_heads = 0) {
  const auto dims = cache.dimensions();
  if (dims.size() != 4 || dims[2] != 2 || head_dim % 16 != 0 || head_dim > kMaxHeadDim)
    return Invalid("cache must be [P, K, 2, S * D], D a multiple of 16 up to 256");
  const bool is_int8 = cache.element_type() == ffi::DataType::S8;
  if (kv_heads == 0) kv_heads = dims[1];  // a cache of one layer
  *s = {heads, kv_heads, head_dim, dims[3] / (head_dim + (is_int8 ? 4 : 0)), scale, soft_cap, window, Type::kF32, Type::kInt8, dims[1]};
  if (!TypeOf(rows, &s->type)) return Invalid("rows must be bf16 or f32");
  if (!is_int8 && (!TypeOf(cache, &s->kv) || s->kv != s->type)) return Invalid("cache must be int8, or of the type of its rows");
  if (s->page_size % 16 != 0 || heads % kv_heads != 0 || dims[1] % kv_heads != 0) return Invalid("page size must be a multiple of 16, H and a page's heads of K");
  return ffi::Error::Success();
}

// The pages that a sequence of `tokens` reads must exist.
bool TableHolds(const int32_t* table, int64_t width, int64_t tokens, int64_t page_size, int64_t pages) {
  const int64_t used = CeilDiv(tokens, page_size);
  if (used > width) return false;
  return std::all_of(table, table + used, [&](int32_t page) { return page >= 0 && page < pages; });
}

constexpr int64_t kAloneTokens = 512;  // KV tokens times KV heads below which a wake-up costs more than it brings

ffi::Error RunAttention(ffi::ThreadPool& pool, const Kernels& kernels, const AttentionShape& s, const ffi::AnyBuffer& cache,
                        const ffi::AnyBuffer& q, void* out, std::vector<AttentionTask> tasks) {
  int64_t work = 0;
  for (const AttentionTask& task : tasks) work += task.rows * task.visible * s.num_kv_heads;
  Team team(pool, work < kAloneTokens);
  const AttentionPlan plan(kernels, s, std::move(tasks), team.threads());
  const AttentionBuffers buffers = {static_cast<const char*>(cache.untyped_data()), static_cast<const char*>(q.untyped_data()),
                                    s.num_heads * s.head_dim, static_cast<char*>(out)};
  team.Run(plan.units(), [&](int64_t unit) { plan.Do(unit, buffers); });
  return ffi::Error::Success();
}

using Ints = ffi::Buffer<ffi::S32>;

// Rows of decode, `queries` tokens each, from `first_row` of the step.
ffi::Error DecodeTasks(const AttentionShape& s, const Ints& tables, const Ints& lengths, int64_t queries, int64_t pages, std::vector<AttentionTask>* tasks) {
  const int64_t width = tables.dimensions()[1];
  for (int64_t b = 0; b < (int64_t)lengths.element_count(); ++b) {
    const int64_t length = lengths.typed_data()[b];
    const int32_t* table = tables.typed_data() + b * width;
    if (length <= 0) continue;
    if (length < queries || !TableHolds(table, width, length, s.page_size, pages)) return Invalid("row outside its page table or the cache");
    tasks->push_back({b * queries, queries, length - queries + 1, table});
  }
  return ffi::Error::Success();
}

// PrefillLayout of engine/kernels/attention.py.
struct Layout {
  const Ints &tables, &block_sequence, &row_start, &chunk_tokens, &context_tokens;
};

// Query blocks of chunks; their rows lie `first_row` behind the step's start.
ffi::Error PrefillTasks(const AttentionShape& s, const Layout& layout, int64_t first_row, int64_t rows, int64_t pages, std::vector<AttentionTask>* tasks) {
  const int64_t sequences = layout.tables.dimensions()[0], width = layout.tables.dimensions()[1];
  for (int64_t block = 0; block < (int64_t)layout.block_sequence.element_count(); ++block) {
    const int64_t n = layout.block_sequence.typed_data()[block], start = block * kMaxQueryRows;
    if (n < 0 || n >= sequences || start + kMaxQueryRows > rows) return Invalid("query block outside the step");
    const int64_t offset = start - layout.row_start.typed_data()[n], context = layout.context_tokens.typed_data()[n];
    const int64_t count = offset < 0 ? 0 : std::clamp<int64_t>(layout.chunk_tokens.typed_data()[n] - offset, 0, kMaxQueryRows);
    const int32_t* table = layout.tables.typed_data() + n * width;
    if (count == 0) continue;
    if (context < 0 || !TableHolds(table, width, context + offset + count, s.page_size, pages)) return Invalid("chunk outside its page table or the cache");
    tasks->push_back({first_row + start, count, context + offset + 1, table});
  }
  return ffi::Error::Success();
}

ffi::Error KvWrite(ffi::ThreadPool pool, ffi::AnyBuffer cache, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::Buffer<ffi::S32> slots,
                   ffi::Result<ffi::AnyBuffer> written, int32_t isa) {
  const Kernels* kernels = KernelsAt(isa);
  AttentionShape s;
  const auto dims = k.dimensions();
  if (!kernels || dims.size() != 3) return Invalid("no such instruction set, or k not [T, K, D]");
  if (ffi::Error error = ShapeOf(cache, k, dims[1], dims[2], 1, 0, 0, &s); error.failure()) return error;
  if (v.element_type() != k.element_type() || s.num_kv_heads != dims[1]) return Invalid("k, v and cache differ in type or heads");
  const int64_t tokens = dims[0], places = cache.dimensions()[0] * s.page_size;
  const int32_t* slot = slots.typed_data();
  if (std::any_of(slot, slot + tokens, [&](int32_t x) { return x >= places; })) return Invalid("slot outside the cache");
  char* to = static_cast<char*>(written->untyped_data());
  if (to != cache.untyped_data()) std::memcpy(to, cache.untyped_data(), cache.size_bytes());  // only when not donated
  constexpr int64_t kUnitTokens = 16;
  Team team(pool, tokens <= 2 * kUnitTokens);
  team.Run(CeilDiv(tokens, kUnitTokens), [&](int64_t unit) {
    kernels->write_kv(s, to, k.untyped_data(), v.untyped_data(), dims[1] * dims[2], slot, unit * kUnitTokens, std::min(tokens, (unit + 1) * kUnitTokens));
  });
  return ffi::Error::Success();
}

ffi::Error Decode(ffi::ThreadPool pool, ffi::AnyBuffer cache, ffi::AnyBuffer q, Ints tables, Ints lengths, ffi::Result<ffi::AnyBuffer> out,
                  int32_t isa, float scale, float soft_cap, int32_t window) {
  const Kernels* kernels = KernelsAt(isa);
  AttentionShape s;
  const auto dims = q.dimensions();
  if (!kernels || dims.size() != 4 || dims[1] > kMaxQueryRows) return Invalid("no such instruction set, or q not [B, 1..16, H, D]");
  if (ffi::Error error = ShapeOf(cache, q, dims[2], dims[3], scale, soft_cap, window, &s); error.failure()) return error;
  std::vector<AttentionTask> tasks;
  if (ffi::Error error = DecodeTasks(s, tables, lengths, dims[1], cache.dimensions()[0], &tasks); error.failure()) return error;
  std::memset(out->untyped_data(), 0, out->size_bytes());  // rows without tokens
  return RunAttention(pool, *kernels, s, cache, q, out->untyped_data(), std::move(tasks));
}

ffi::Error Prefill(ffi::ThreadPool pool, ffi::AnyBuffer cache, ffi::AnyBuffer q, Ints tables, Ints block_sequence, Ints row_start, Ints chunk_tokens,
                   Ints context_tokens, ffi::Result<ffi::AnyBuffer> out, int32_t isa, float scale, float soft_cap, int32_t window) {
  const Kernels* kernels = KernelsAt(isa);
  AttentionShape s;
  const auto dims = q.dimensions();
  if (!kernels || dims.size() != 3) return Invalid("no such instruction set, or q not [T, H, D]");
  if (ffi::Error error = ShapeOf(cache, q, dims[1], dims[2], scale, soft_cap, window, &s); error.failure()) return error;
  const Layout layout = {tables, block_sequence, row_start, chunk_tokens, context_tokens};
  std::vector<AttentionTask> tasks;
  if (ffi::Error error = PrefillTasks(s, layout, 0, dims[0], cache.dimensions()[0], &tasks); error.failure()) return error;
  std::memset(out->untyped_data(), 0, out->size_bytes());
  return RunAttention(pool, *kernels, s, cache, q, out->untyped_data(), std::move(tasks));
}

ffi::Error WeightOf(int32_t kind, const ffi::AnyBuffer& data, const ffi::AnyBuffer& scales, int64_t in, Weight* weight) {
  *weight = {static_cast<WeightKind>(kind), static_cast<const char*>(data.untyped_data()), scales.untyped_data(), 0, in};
  const bool is_blocks = weight->kind == WeightKind::kQ8 || weight->kind == WeightKind::kQ4;
  weight->out = data.dimensions()[0] * (is_blocks ? 16 : kOutGroup);
  const int64_t values = (int64_t)data.element_count() * (weight->kind == WeightKind::kQ4 ? 2 : 1);
  if (kind < 0 || kind > 3 || values != weight->out * in || weight->out % kOutGroup != 0) return Invalid("weight and activations differ in width");
  return ffi::Error::Success();
}

// In place of a row that nobody reads, as the step was cut short: numbers that a sampler is soon done with.
void LeaveOut(char* row, int64_t width, Type type) {
  constexpr uint32_t kFarBelow = 0xff000000;  // -1.7e38 in f32, and its upper half in bf16
  if (type == Type::kF32) std::fill_n(reinterpret_cast<uint32_t*>(row), width, kFarBelow);
  else std::fill_n(reinterpret_cast<uint16_t*>(row), width, (uint16_t)(kFarBelow >> 16));
  std::memset(row, 0, Bytes(type));
}

// x [T, in] bf16, data and scales as kernels.h says, live [T] or [0] (all) -> [T, out], out cut to the result's width; zeros in rows
// that are not live. Where none is, or all of them were left out of a step that was cut short, the weight is not read.
ffi::Error Product(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::AnyBuffer data, ffi::AnyBuffer scales, ffi::Buffer<ffi::PRED> live,
                   ffi::Result<ffi::AnyBuffer> y, int32_t isa, int32_t kind) {
  const Kernels* kernels = KernelsAt(isa);
  Weight weight;
  Type type;
  if (!kernels || !TypeOf(*y, &type)) return Invalid("no such instruction set, or a result neither bf16 nor f32");
  const int64_t rows = x.dimensions()[0], width = y->dimensions()[1];
  if (ffi::Error error = WeightOf(kind, data, scales, x.dimensions()[1], &weight); error.failure()) return error;
  if (width > weight.out) return Invalid("result wider than the weight");
  const bool* flags = live.typed_data();
  const int64_t count = (int64_t)live.element_count();
  if (count != 0 && count != rows) return Invalid("a flag for each row, or none");
  const auto is_live = [&](int64_t row) { return count == 0 || flags[row]; };
  char* out = static_cast<char*>(y->untyped_data());
  for (int64_t row = 0; row < rows; ++row) {
    char* place = out + row * width * Bytes(type);
    if (!is_live(row)) std::memset(place, 0, width * Bytes(type));
    else if (!TheCut().Keeps(row)) LeaveOut(place, width, type);
  }
  const LiveRows kept(rows, Team::ThreadsOf(pool), [&](int64_t row) { return is_live(row) && TheCut().Keeps(row); });
  if (kept.count() == 0) return ffi::Error::Success();
  Team team(pool, false);
  RunProduct(team, *kernels, weight, reinterpret_cast<const uint16_t*>(x.untyped_data()), rows, kept, nullptr, [&](int64_t group, int64_t first, int64_t count, const float* tile) {
    const int64_t start = group * kOutGroup;
    if (start >= width) return;
    kernels->store(tile, count, std::min(kOutGroup, width - start), nullptr, nullptr, width, type, out + (first * width + start) * Bytes(type));
  });
  return ffi::Error::Success();
}

constexpr size_t kStepBuffers = 11;

// The step's own arrays, the first arguments.
ffi::Error ReadStep(const ffi::RemainingArgs& args, ffi::AnyBuffer result, Step* step) {
  for (size_t i = 3; i < kStepBuffers; ++i)
    if (!args.get<Ints>(i).has_value()) return Invalid("tables and lengths must be i32");
  const ffi::AnyBuffer hidden = *args.get<ffi::AnyBuffer>(0);
  step->rows = hidden.dimensions()[0];
  step->hidden = hidden.dimensions()[1];
  step->cos = static_cast<const float*>((*args.get<ffi::AnyBuffer>(1)).untyped_data());
  step->sin = static_cast<const float*>((*args.get<ffi::AnyBuffer>(2)).untyped_data());
  step->slots = (*args.get<Ints>(3)).typed_data();
  step->state = static_cast<uint16_t*>(result.untyped_data());
  if (step->state != hidden.untyped_data()) std::memcpy(step->state, hidden.untyped_data(), hidden.size_bytes());
  return ffi::Error::Success();
}

ffi::Error TasksOf(const ffi::RemainingArgs& args, const Step& step, int64_t decode_rows, int64_t pages, std::vector<AttentionTask>* tasks) {
  const auto ints = [&](size_t i) { return *args.get<Ints>(i); };
  if (ffi::Error error = DecodeTasks(step.shape, ints(4), ints(5), 1, pages, tasks); error.failure()) return error;
  const Ints tables = ints(6), block_sequence = ints(7), row_start = ints(8), chunk_tokens = ints(9), context_tokens = ints(10);
  const Layout layout = {tables, block_sequence, row_start, chunk_tokens, context_tokens};
  return PrefillTasks(step.shape, layout, decode_rows, step.rows - decode_rows, pages, tasks);
}

// How the rest of a step's layers run: its attention, and the arrays between the phases.
struct Course {
  Course(Team& team, const Kernels& kernels, const Step& step, const std::vector<AttentionTask>& tasks)
      : attention(kernels, step.shape, tasks, team.threads()), stack(team, kernels, step, attention) {}
  AttentionPlan attention;
  Stack stack;
};

// Leaves all rows but the decodes out of the layers that follow; false where there are none.
bool CutShort(int64_t decode_rows, Step* step, std::vector<AttentionTask>* tasks) {
  tasks->erase(std::remove_if(tasks->begin(), tasks->end(), [&](const AttentionTask& task) { return task.first_row >= decode_rows; }), tasks->end());
  step->rows = decode_rows;
  TheCut().Make(decode_rows);
  return !tasks->empty();
}

// args: hidden [T, hidden] bf16, cos, sin [T, D/2] f32, slots [T], decode tables [B, M] and lengths [B], the five arrays of a
// PrefillLayout for rows B.., then the buffers of weights, then those of caches [P, layers * K, 2, ..], all layers in order.
// `buffers` says which buffer a layer's weights are in, `offsets` where. rets: hidden, then the caches in place.
ffi::Error Decoder(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, int32_t isa, int32_t num_heads,
                   int32_t num_kv_heads, int32_t head_dim, int32_t intermediate, float eps, float scale, int32_t window,
                   ffi::Span<const int32_t> kinds, ffi::Span<const int32_t> buffers, ffi::Span<const int64_t> offsets) {
  const Kernels* kernels = KernelsAt(isa);
  const size_t num_layers = buffers.size(), num_caches = rets.size() - 1;
  if (!kernels || num_layers == 0 || kinds.size() != 4 * num_layers || offsets.size() != kLayerTensors * num_layers || rets.size() < 2 ||
      args.size() < kStepBuffers + 1 + num_caches)
    return Invalid("no such instruction set, or a wrong number of buffers");
  const size_t first_cache = args.size() - num_caches;
  const ffi::AnyBuffer given = *args.get<ffi::AnyBuffer>(first_cache);
  Step step;
  if (ffi::Error error = ShapeOf(given, *args.get<ffi::AnyBuffer>(0), num_heads, head_dim, scale, 0, window, &step.shape, num_kv_heads); error.failure())
    return error;
  if (step.shape.type != Type::kBf16) return Invalid("hidden state must be bf16");
  if (ffi::Error error = ReadStep(args, **rets.get<ffi::AnyBuffer>(0), &step); error.failure()) return error;
  step.intermediate = intermediate;
  step.eps = eps;
  const int64_t pages = given.dimensions()[0];
  if (std::any_of(step.slots, step.slots + step.rows, [&](int32_t x) { return x >= pages * step.shape.page_size; })) return Invalid("slot outside the cache");
  const int64_t decode_rows = (int64_t)(*args.get<Ints>(5)).element_count();
  std::vector<AttentionTask> tasks;
  if (ffi::Error error = TasksOf(args, step, decode_rows, pages, &tasks); error.failure()) return error;

  Team team(pool, false);
  size_t layer_index = 0;
  for (size_t c = 0; c < num_caches; ++c) {
    ffi::AnyBuffer cache = **rets.get<ffi::AnyBuffer>(1 + c);
    const ffi::AnyBuffer before = *args.get<ffi::AnyBuffer>(first_cache + c);
    if (cache.untyped_data() != before.untyped_data()) std::memcpy(cache.untyped_data(), before.untyped_data(), before.size_bytes());
    step.shape.page_heads = cache.dimensions()[1];
    std::optional<Course> course(std::in_place, team, *kernels, step, tasks);
    char* place = static_cast<char*>(cache.untyped_data());
    for (int64_t heads = 0; heads < step.shape.page_heads; heads += num_kv_heads, ++layer_index) {
      if (layer_index == num_layers) return Invalid("more layers in the caches than in the weights");
      const int32_t buffer = buffers.begin()[layer_index];
      if (buffer < 0 || kStepBuffers + buffer >= first_cache) return Invalid("no such buffer of weights");
      Layer layer;
      const ffi::AnyBuffer weights = *args.get<ffi::AnyBuffer>(kStepBuffers + buffer);
      const LayerReader reader(static_cast<const char*>(weights.untyped_data()), (int64_t)weights.size_bytes(),
                               offsets.begin() + kLayerTensors * layer_index);
      if (!ReadLayer(reader, step, kinds.begin() + 4 * layer_index, place + heads * step.shape.head_bytes(), &layer))
        return Invalid("a weight lies outside its buffer, or is missing");
      if (TheCut().Due()) {
        if (!CutShort(decode_rows, &step, &tasks)) return ffi::Error::Success();
        course.emplace(team, *kernels, step, tasks);
      }
      course->stack.Run(layer);
    }
  }
  return layer_index == num_layers ? ffi::Error::Success() : Invalid("fewer layers in the caches than in the weights");
}

}  // namespace

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(fairlane_kv_write, KvWrite,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>().Ret<ffi::AnyBuffer>().Attr<int32_t>("isa"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fairlane_decode, Decode,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>().Ret<ffi::AnyBuffer>().Attr<int32_t>("isa").Attr<float>("scale")
                                  .Attr<float>("soft_cap").Attr<int32_t>("window"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fairlane_prefill, Prefill,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>().Arg<ffi::Buffer<ffi::S32>>().Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>().Ret<ffi::AnyBuffer>().Attr<int32_t>("isa").Attr<float>("scale")
                                  .Attr<float>("soft_cap").Attr<int32_t>("window"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fairlane_product, Product,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::Buffer<ffi::BF16>>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::PRED>>().Ret<ffi::AnyBuffer>().Attr<int32_t>("isa").Attr<int32_t>("kind"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fairlane_decoder, Decoder,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attr<int32_t>("isa").Attr<int32_t>("num_heads")
                                  .Attr<int32_t>("num_kv_heads").Attr<int32_t>("head_dim").Attr<int32_t>("intermediate").Attr<float>("eps").Attr<float>("scale")
                                  .Attr<int32_t>("window").Attr<ffi::Span<const int32_t>>("kinds").Attr<ffi::Span<const int32_t>>("buffers")
                                  .Attr<ffi::Span<const int64_t>>("offsets"));

// The name of an instruction set, or null where this library or machine has none.
extern "C" const char* fairlane_isa_name(int level) {
  const Kernels* kernels = KernelsAt(level);
  return kernels ? kernels->name : nullptr;
}

// Cut the running step short; and, when it is done, whether it was.
extern "C" void fairlane_want_cut() { TheCut().Want(); }
extern "C" bool fairlane_settle_cut() { return TheCut().Settle(); }

#pragma GCC visibility pop

}  // namespace fairlane
