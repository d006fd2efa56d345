// The calls that JAX makes: decodes buffers, checks what could read or write out of bounds, hands over to run.h.
#include <string>

#include "run.h"
#include "select.h"
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

// cache [P, K, 2, S * D], q [rows, H, D].
ffi::Error ShapeOf(const ffi::AnyBuffer& cache, int64_t heads, int64_t head_dim, float scale, float soft_cap, int64_t window, AttentionShape* s) {
  const auto dims = cache.dimensions();
  if (dims.size() != 4 || dims[2] != 2 || head_dim % 16 != 0) return Invalid("cache must be [P, K, 2, S * D], D a multiple of 16");
  *s = {heads, dims[1], head_dim, dims[3] / head_dim, scale, soft_cap, window, Type::kF32};
  if (!TypeOf(cache, &s->type)) return Invalid("cache must be bf16 or f32");
  if (s->page_size % 16 != 0 || heads % dims[1] != 0) return Invalid("page size must be a multiple of 16, H one of K");
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
                        const ffi::AnyBuffer& q, void* out, const std::vector<AttentionTask>& tasks) {
  int64_t work = 0;
  for (const AttentionTask& task : tasks) work += task.rows * task.visible * s.num_kv_heads;
  Team team(pool, work < kAloneTokens);
  const AttentionRun run(kernels, s, static_cast<const char*>(cache.untyped_data()), q.untyped_data(), out, tasks, team.threads());
  team.Run(run.units(), [&](int64_t unit) { run.Do(unit); });
  return ffi::Error::Success();
}

ffi::Error KvWrite(ffi::ThreadPool pool, ffi::AnyBuffer cache, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::Buffer<ffi::S32> slots,
                   ffi::Result<ffi::AnyBuffer> written, int32_t isa) {
  const Kernels* kernels = KernelsAt(isa);
  AttentionShape s;
  const auto dims = k.dimensions();
  if (!kernels || dims.size() != 3) return Invalid("no such instruction set, or k not [T, K, D]");
  if (ffi::Error error = ShapeOf(cache, dims[1], dims[2], 1, 0, 0, &s); error.failure()) return error;
  if (k.element_type() != cache.element_type() || v.element_type() != cache.element_type() || s.num_kv_heads != dims[1])
    return Invalid("k, v and cache differ in type or heads");
  const int64_t tokens = dims[0], places = cache.dimensions()[0] * s.page_size;
  const int32_t* slot = slots.typed_data();
  if (std::any_of(slot, slot + tokens, [&](int32_t x) { return x >= places; })) return Invalid("slot outside the cache");
  char* to = static_cast<char*>(written->untyped_data());
  if (to != cache.untyped_data()) std::memcpy(to, cache.untyped_data(), cache.size_bytes());  // only when not donated
  constexpr int64_t kUnitTokens = 16;
  Team team(pool, tokens <= 2 * kUnitTokens);
  team.Run(CeilDiv(tokens, kUnitTokens), [&](int64_t unit) {
    kernels->write_kv(s, to, k.untyped_data(), v.untyped_data(), slot, unit * kUnitTokens, std::min(tokens, (unit + 1) * kUnitTokens));
  });
  return ffi::Error::Success();
}

ffi::Error Decode(ffi::ThreadPool pool, ffi::AnyBuffer cache, ffi::AnyBuffer q, ffi::Buffer<ffi::S32> tables, ffi::Buffer<ffi::S32> lengths,
                  ffi::Result<ffi::AnyBuffer> out, int32_t isa, float scale, float soft_cap, int32_t window) {
  const Kernels* kernels = KernelsAt(isa);
  AttentionShape s;
  const auto dims = q.dimensions();
  if (!kernels || dims.size() != 4 || dims[1] > kMaxQueryRows) return Invalid("no such instruction set, or q not [B, 1..16, H, D]");
  if (ffi::Error error = ShapeOf(cache, dims[2], dims[3], scale, soft_cap, window, &s); error.failure()) return error;
  if (q.element_type() != cache.element_type()) return Invalid("q and cache differ in type");
  const int64_t queries = dims[1], width = tables.dimensions()[1], row_bytes = s.num_heads * s.head_dim * Bytes(s.type);
  std::vector<AttentionTask> tasks;
  for (int64_t b = 0; b < dims[0]; ++b) {
    const int64_t length = lengths.typed_data()[b];
    const int32_t* table = tables.typed_data() + b * width;
    if (length <= 0) {
      std::memset(static_cast<char*>(out->untyped_data()) + b * queries * row_bytes, 0, queries * row_bytes);
      continue;
    }
    if (length < queries || !TableHolds(table, width, length, s.page_size, cache.dimensions()[0])) return Invalid("row outside its page table or the cache");
    tasks.push_back({b * queries, queries, length - queries + 1, table});
  }
  return RunAttention(pool, *kernels, s, cache, q, out->untyped_data(), tasks);
}

ffi::Error Prefill(ffi::ThreadPool pool, ffi::AnyBuffer cache, ffi::AnyBuffer q, ffi::Buffer<ffi::S32> tables, ffi::Buffer<ffi::S32> block_sequence,
                   ffi::Buffer<ffi::S32> row_start, ffi::Buffer<ffi::S32> chunk_tokens, ffi::Buffer<ffi::S32> context_tokens,
                   ffi::Result<ffi::AnyBuffer> out, int32_t isa, float scale, float soft_cap, int32_t window) {
  const Kernels* kernels = KernelsAt(isa);
  AttentionShape s;
  const auto dims = q.dimensions();
  if (!kernels || dims.size() != 3) return Invalid("no such instruction set, or q not [T, H, D]");
  if (ffi::Error error = ShapeOf(cache, dims[1], dims[2], scale, soft_cap, window, &s); error.failure()) return error;
  if (q.element_type() != cache.element_type()) return Invalid("q and cache differ in type");
  const int64_t sequences = tables.dimensions()[0], width = tables.dimensions()[1], row_bytes = s.num_heads * s.head_dim * Bytes(s.type);
  std::vector<AttentionTask> tasks;
  for (int64_t block = 0; block < (int64_t)block_sequence.element_count(); ++block) {
    const int64_t n = block_sequence.typed_data()[block], first = block * kMaxQueryRows;
    if (n < 0 || n >= sequences || first + kMaxQueryRows > dims[0]) return Invalid("query block outside the step");
    const int64_t offset = first - row_start.typed_data()[n], chunk = chunk_tokens.typed_data()[n];
    const int64_t rows = offset < 0 ? 0 : std::clamp<int64_t>(chunk - offset, 0, kMaxQueryRows);
    std::memset(static_cast<char*>(out->untyped_data()) + (first + rows) * row_bytes, 0, (kMaxQueryRows - rows) * row_bytes);
    if (rows == 0) continue;
    const int64_t context = context_tokens.typed_data()[n];
    const int32_t* table = tables.typed_data() + n * width;
    if (context < 0 || !TableHolds(table, width, context + offset + rows, s.page_size, cache.dimensions()[0]))
      return Invalid("chunk outside its page table or the cache");
    tasks.push_back({first, rows, context + offset + 1, table});
  }
  return RunAttention(pool, *kernels, s, cache, q, out->untyped_data(), tasks);
}

ffi::Error WeightOf(int32_t kind, const ffi::AnyBuffer& data, const ffi::AnyBuffer& scales, int64_t in, Weight* weight) {
  *weight = {static_cast<WeightKind>(kind), static_cast<const char*>(data.untyped_data()), scales.untyped_data(), data.dimensions()[0] * kOutGroup, in};
  const int64_t values = (int64_t)data.element_count();
  if (kind < 0 || kind > 3 || values * (weight->kind == WeightKind::kQ4 ? 2 : 1) != weight->out * in) return Invalid("weight and activations differ in width");
  return ffi::Error::Success();
}

// x [T, in] bf16, data and scales as kernels.h says -> [T, out], out cut to the result's width.
ffi::Error Product(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::AnyBuffer data, ffi::AnyBuffer scales, ffi::Result<ffi::AnyBuffer> y,
                   int32_t isa, int32_t kind) {
  const Kernels* kernels = KernelsAt(isa);
  Weight weight;
  Type type;
  if (!kernels || !TypeOf(*y, &type)) return Invalid("no such instruction set, or a result neither bf16 nor f32");
  const int64_t rows = x.dimensions()[0], width = y->dimensions()[1];
  if (ffi::Error error = WeightOf(kind, data, scales, x.dimensions()[1], &weight); error.failure()) return error;
  if (width > weight.out) return Invalid("result wider than the weight");
  Team team(pool, false);
  char* out = static_cast<char*>(y->untyped_data());
  RunProduct(team, *kernels, weight, reinterpret_cast<const uint16_t*>(x.untyped_data()), rows, [&](int64_t group, int64_t first, int64_t count, const float* tile) {
    const int64_t start = group * kOutGroup;
    if (start >= width) return;
    kernels->store(tile, count, std::min(kOutGroup, width - start), nullptr, nullptr, width, type, out + (first * width + start) * Bytes(type));
  });
  return ffi::Error::Success();
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
                                  .Ret<ffi::AnyBuffer>().Attr<int32_t>("isa").Attr<int32_t>("kind"));

// The name of an instruction set, or null where this library or machine has none.
extern "C" const char* fairlane_isa_name(int level) {
  const Kernels* kernels = KernelsAt(level);
  return kernels ? kernels->name : nullptr;
}

#pragma GCC visibility pop

}  // namespace fairlane
