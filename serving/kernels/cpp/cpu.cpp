// The C ABI of the kernels, called from Python through ctypes, which has checked shapes and dtypes.
//
// Indices (token ids, slots, block tables) are checked here: a function that returns int32_t returns 0, and writes
// nothing, when an index is out of range; otherwise it returns 1.
#include "decoder.h"
#include "draft.h"
#include "screen.h"

using namespace hk;

#pragma GCC visibility push(default)
extern "C" {

int32_t hk_vector_width() { return W; }

// Whether matmuls with int16 inputs run on AMX tiles.
int32_t hk_has_tiles() {
#if defined(HK_AMX)
  return amx_allowed();
#else
  return 0;
#endif
}

// Whether matmuls with bfloat16 inputs run on AMX tiles; otherwise such inputs are rounded to int8 instead.
int32_t hk_has_bfloat16() {
#if defined(HK_AMX_BF16)
  return W == 16 && amx_allowed();
#else
  return 0;
#endif
}

// Whether attention runs on dot products of bfloat16 beside matmuls with int8 inputs.
int32_t hk_has_dots() {
#if defined(HK_BF16_DOTS)
  return 1;
#else
  return 0;
#endif
}

Pool* hk_pool_create(int32_t threads) { return new Pool(threads); }
void hk_pool_destroy(Pool* pool) { delete pool; }

// Has the system allocate the memory pages of `bytes` bytes, which other threads may use meanwhile: it replaces a 0 in
// each page by 0, atomically, and leaves other values alone.
void hk_touch(uint8_t* memory, int64_t bytes) {
  constexpr int64_t kSmallestPage = 4096;
  for (int64_t i = 0; i < bytes; i += kSmallestPage) {
    uint8_t zero = 0;
    __atomic_compare_exchange_n(memory + i, &zero, uint8_t{0}, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
}

int32_t hk_embedding(Pool* pool, const int32_t* ids, const void* table, int32_t dtype, int64_t table_rows,
                     int64_t rows, int64_t width, float* out) {
  if (!all_below(ids, rows, table_rows)) return 0;
  pool->run(0, [&] { with_type(table, dtype, [&](auto data) { embedding(*pool, ids, data, rows, width, out); }); });
  return 1;
}

void hk_add_rms_norm(Pool* pool, const float* x, float* residual, const float* weight, float eps,
                     int64_t rows, int64_t width, float* out) {
  pool->run(0, [&] { add_rms_norm(*pool, x, residual, weight, eps, rows, width, out); });
}

void hk_silu_and_mul(Pool* pool, const float* gate_up, int64_t rows, int64_t width, float* out) {
  pool->run(0, [&] { silu_and_mul(*pool, gate_up, rows, width, out); });
}

// Whether KV caches hold bfloat16 tiles; otherwise they hold float32.
int32_t hk_cache_uses_tiles(const AttentionShape* shape, int64_t block_size) { return uses_tiles(*shape, block_size); }

void hk_adjust_qkv(Pool* pool, float* qkv, int64_t rows, const QkvAdjustment* adjustment,
                   const AttentionShape* shape) {
  pool->run(0, [&] { adjust_qkv(*pool, qkv, *adjustment, *shape, rows); });
}

int32_t hk_rotary_and_store_kv(Pool* pool, float* qkv, const float* cos, const float* sin, void* kv_cache,
                               int64_t num_blocks, int64_t block_size, const int32_t* slots,
                               const AttentionShape* shape, int64_t rows) {
  if (!all_below(slots, rows, num_blocks * block_size)) return 0;
  const KvCache cache(kv_cache, block_size, *shape);
  const auto at = [](int64_t row) { return row; };
  pool->run(0, [&] { rotary_and_store_kv(*pool, qkv, cos, sin, at, cache, slots, *shape, rows); });
  return 1;
}

int32_t hk_paged_attention(Pool* pool, const float* qkv, void* kv_cache, const Batch* batch,
                           const AttentionShape* shape, float* out) {
  if (!valid(*batch)) return 0;
  const KvCache cache(kv_cache, batch->block_size, *shape);
  pool->run(0, [&] { attention(*pool, qkv, cache, *batch, *shape, out); });
  return 1;
}

// `shape` gives the sizes; the packed weight is written to its pointers.
void hk_pack_awq(Pool* pool, const uint32_t* qweight, const uint32_t* qzeros, const void* scales,
                 const Awq* shape) {
  pool->run(0, [&] {
    pack_awq(*pool, qweight, qzeros, static_cast<const Half*>(scales), *shape,
             const_cast<uint32_t*>(shape->quants), const_cast<uint8_t*>(shape->zeros),
             const_cast<Half*>(shape->scales));
  });
}

void hk_awq_gemm(Pool* pool, const Awq* weight, const float* x, int64_t rows, float* out) {
  pool->run(Int16Rows::floats(*weight, rows), [&] { awq_gemm(*pool, *weight, x, rows, out); });
}

void hk_dense_gemm(Pool* pool, const Dense* weight, const float* x, int64_t rows, float* out, int64_t ldo) {
  pool->run(dense_floats(*weight, rows), [&] { dense_gemm(*pool, *weight, x, rows, out, ldo); });
}

void hk_add_lora(Pool* pool, const LoraBatch* batch, const LoraSite* site, const float* x, float* out) {
  pool->run(0, [&] { add_lora(*pool, *batch, *site, x, out); });
}

int32_t hk_masked_products(Pool* pool, const Dense* weight, const float* x, int64_t rows,
                           const MaskedProducts* masked) {
  if (!all_below(masked->rows, masked->count, rows) || !bits_below(masked->bits, masked->count, weight->out)) return 0;
  const bool single = list_columns(*masked) * weight->in < kMinParallelProducts;
  pool->run(0, [&] { masked_products(*pool, *weight, *masked, x); }, single);
  return 1;
}

// `screen` gives the sizes; the copy is written to its pointers.
void hk_pack_screen(Pool* pool, const Dense* head, const Screen* screen) {
  pool->run(0, [&] { pack_screen(*pool, *head, *screen); });
}

int32_t hk_narrow(Pool* pool, const Dense* head, const Screen* screen, const float* x, int64_t rows, uint32_t* bits,
                  float* sums) {
  if (!bits_below(bits, rows, head->out)) return 0;
  pool->run(screen_floats(screen->awq), [&] { narrow(*pool, *head, *screen, x, rows, bits, sums); });
  return 1;
}

int64_t hk_workspace_floats(const Decoder* decoder, int64_t tokens) {
  return workspace_floats(*decoder, tokens);
}

int32_t hk_decode(Pool* pool, const Decoder* decoder, const Pass* pass) {
  const Batch& b = pass->batch;
  if (!valid(b) || !all_below(pass->slot_mapping, b.tokens, b.num_blocks * b.block_size)) return 0;
  if (!all_below(pass->ids, b.tokens, decoder->vocab)) return 0;
  if (!all_below(pass->positions, b.tokens, decoder->num_angles)) return 0;
  pool->run(shared_floats(*decoder, b.tokens), [&] { decode(*pool, *decoder, *pass); });
  return 1;
}

// Converts one weight [out, in] of a draft model to the layout of draft_product.h; returns the bytes written.
int64_t hk_prepare_draft(const Half* weight, int64_t out, int64_t in, void* to) {
  return prepare_weights(weight, out, in, to);
}

// Runs on the caller's thread only: waking another one takes longer than a draft.
int32_t hk_draft(DraftModel* model, DraftStep* step) {
  if (step->count < 0 || step->start < 0 || step->start + step->count > model->capacity) return 0;
  if (!all_below(step->ids, step->count, model->vocab)) return 0;
  if (!all_below(step->candidates, step->num_candidates, model->vocab)) return 0;
  draft(*model, *step);
  return 1;
}

}  // extern "C"
#pragma GCC visibility pop
