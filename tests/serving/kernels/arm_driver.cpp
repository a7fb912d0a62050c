// Runs one kernel on inputs from stdin and writes its outputs to stdout: for builds for a processor that is emulated.
//
// The input is a sequence of arrays: int64 number of bytes, then these. The first is the kernel's name. Numbers are
// arrays of one int64. tests/serving/kernels/arm.py writes and reads them.
#include <cstdio>
#include <string>

#include "cpu.cpp"

namespace {

constexpr int kThreads = 2;

// A copy of an input, aligned, with room behind it for a vector that a kernel may load and not use.
struct Array {
  explicit Array(int64_t bytes)
      : bytes(bytes), data(static_cast<char*>(std::aligned_alloc(64, (bytes + 319) / 64 * 64))) {}
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  int64_t bytes;
  char* data;
};

Array read() {
  int64_t bytes;
  if (std::fread(&bytes, sizeof bytes, 1, stdin) != 1) std::abort();
  const Array array(bytes);
  if (bytes && std::fread(array.data, bytes, 1, stdin) != 1) std::abort();
  return array;
}

int64_t number() { return *read().as<int64_t>(); }

void write(const Array& array) {
  std::fwrite(&array.bytes, sizeof array.bytes, 1, stdout);
  std::fwrite(array.data, 1, array.bytes, stdout);
}

// An output, NaN until the kernel writes it.
Array floats(int64_t count) {
  const Array array(count * sizeof(float));
  std::memset(array.data, 255, array.bytes);
  return array;
}

// Reads a weight as AutoAWQ stores it and its sizes; returns it packed.
Awq read_awq(Pool* pool) {
  const Array qweight = read(), qzeros = read(), scales = read();
  Awq w{};
  w.in = number(), w.out = number(), w.group = number(), w.inputs = number();
  const int64_t columns = w.strips() * W;
  w.quants = Array(columns * w.in / 2).as<uint32_t>(), w.zeros = Array(columns * w.groups()).as<uint8_t>();
  w.scales = Array(columns * w.groups() * sizeof(Half)).as<Half>();
  hk_pack_awq(pool, qweight.as<uint32_t>(), qzeros.as<uint32_t>(), scales.data, &w);
  return w;
}

void awq(Pool* pool) {
  const Awq w = read_awq(pool);
  for (int64_t count = number(); count > 0; count--) {
    const Array x = read();
    const int64_t rows = x.bytes / sizeof(float) / w.in;
    const Array out = floats(rows * w.out);
    hk_awq_gemm(pool, &w, x.as<float>(), rows, out.as<float>());
    write(out);
  }
}

void dense(Pool* pool) {
  const Array weight = read(), x = read();
  Dense d{};
  d.data = weight.data, d.dtype = int32_t(number()), d.in = number(), d.out = number();
  const int64_t rows = x.bytes / sizeof(float) / d.in;
  const Array out = floats(rows * d.out);
  hk_dense_gemm(pool, &d, x.as<float>(), rows, out.as<float>(), d.out);
  write(out);
}

AttentionShape read_shape() {
  AttentionShape shape{};
  shape.heads = int32_t(number()), shape.kv_heads = int32_t(number()), shape.head_dim = int32_t(number());
  shape.window = int32_t(number()), shape.inputs = int32_t(number());
  return shape;
}

Batch read_batch() {
  const Array starts = read(), lens = read(), tables = read();
  Batch b{};
  b.num_blocks = number(), b.block_size = number();
  b.seqs = lens.bytes / 4, b.max_blocks = tables.bytes / 4 / b.seqs;
  b.query_start = starts.as<int32_t>(), b.context_lens = lens.as<int32_t>(), b.block_tables = tables.as<int32_t>();
  b.tokens = b.query_start[b.seqs];
  return b;
}

Array empty_cache(const Batch& b, AttentionShape shape) {
  return floats(b.num_blocks * 2 * shape.kv_heads * b.block_size * shape.head_dim);
}

// Stores the keys and values of all rows, then attends.
void attention(Pool* pool) {
  const Array qkv = read(), cos = read(), sin = read(), slots = read();
  const Batch b = read_batch();
  const AttentionShape shape = read_shape();
  const Array cache = empty_cache(b, shape), out = floats(b.tokens * shape.heads * shape.head_dim);
  if (!hk_rotary_and_store_kv(pool, qkv.as<float>(), cos.as<float>(), sin.as<float>(), cache.data, b.num_blocks,
                              b.block_size, slots.as<int32_t>(), &shape, b.tokens))
    std::abort();
  if (!hk_paged_attention(pool, qkv.as<float>(), cache.data, &b, &shape, out.as<float>())) std::abort();
  write(out);
}

// A model of one layer with 4-bit weights; all norms have the same weights, the embedding is float16.
void decode(Pool* pool) {
  const Array ids = read(), positions = read(), slots = read(), embedding = read(), cos = read(), sin = read();
  const Array norm = read();
  Linear linears[4] = {};
  for (Linear& linear : linears) linear.awq = read_awq(pool);
  const QkvAdjustment none{};
  const Layer layer{norm.as<float>(), norm.as<float>(), linears, linears + 1, linears + 2, linears + 3, none};
  Decoder d{};
  d.hidden = norm.bytes / 4, d.intermediate = linears[3].awq.in, d.eps = 1e-5f;
  d.embedding = embedding.data, d.dtype = kFloat16, d.vocab = embedding.bytes / 2 / d.hidden;
  Pass p{};
  p.batch = read_batch();
  d.shape = read_shape();
  d.cos = cos.as<float>(), d.sin = sin.as<float>(), d.num_angles = cos.bytes / 4 / (d.shape.head_dim / 2);
  d.layers = &layer, d.num_layers = 1, d.final_norm = norm.as<float>();
  void* caches[1] = {empty_cache(p.batch, d.shape).data};
  const Array out = floats(p.batch.tokens * d.hidden);
  p.ids = ids.as<int32_t>(), p.positions = positions.as<int32_t>(), p.slot_mapping = slots.as<int32_t>();
  p.kv_caches = caches, p.out = out.as<float>();
  p.workspace = floats(hk_workspace_floats(&d, p.batch.tokens)).as<float>();
  if (!hk_decode(pool, &d, &p)) std::abort();
  write(out);
}

void add_norm(Pool* pool) {
  const Array x = read(), residual = read(), weight = read();
  const int64_t width = weight.bytes / 4, rows = x.bytes / weight.bytes;
  const Array out = floats(rows * width);
  hk_add_rms_norm(pool, x.as<float>(), residual.as<float>(), weight.as<float>(), 1e-5f, rows, width, out.as<float>());
  write(residual);
  write(out);
}

void activate(Pool* pool) {
  const Array gate_up = read();
  const int64_t rows = number(), width = gate_up.bytes / 8 / rows;
  const Array out = floats(rows * width);
  hk_silu_and_mul(pool, gate_up.as<float>(), rows, width, out.as<float>());
  write(out);
}

// The attention of the draft model for one query after all keys and values.
void draft_attention(void*) {
  const Array query = read(), keys = read(), values = read();
  const int64_t count = keys.bytes / 4 / kDraftHead, room = (count / kDraftBlock + 1) * kDraftBlock * kDraftPairs;
  const Array key_pairs = floats(room), value_pairs = floats(room), scores = floats(count + kDraftBlock);
  const Array weights = floats(count + kDraftBlock), out = floats(kDraftHead);
  for (int64_t i = 0; i < count; i++) {
    store_key(keys.as<float>() + i * kDraftHead, i, key_pairs.as<uint32_t>());
    store_value(values.as<float>() + i * kDraftHead, i, value_pairs.as<uint32_t>());
  }
  attend(query.as<float>(), key_pairs.as<uint32_t>(), value_pairs.as<uint32_t>(), count, scores.as<float>(),
         weights.as<BFloat16>(), out.as<float>());
  write(out);
}

}  // namespace

int main() {
  const Array name = read();
  Pool* pool = hk_pool_create(kThreads);
  const std::string kernel(name.data, name.bytes);
  if (kernel == "awq") awq(pool);
  else if (kernel == "dense") dense(pool);
  else if (kernel == "attention") attention(pool);
  else if (kernel == "decode") decode(pool);
  else if (kernel == "add_norm") add_norm(pool);
  else if (kernel == "activate") activate(pool);
  else if (kernel == "draft_attention") draft_attention(pool);
  else return 2;
  hk_pool_destroy(pool);
  return 0;
}
