/* Oracle: every function of quire.h can be called from plain C (and C++), returns QUIRE_OK for a
 * whole small life of a cache, and attention over equal values gives that value back. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quire/quire.h"

#define TOKENS 40u
#define LAYERS 2u
#define KV_HEADS 2u
#define Q_HEADS 4u
#define DIM 32u
#define VALUE 0.5f

static int failures = 0;

static void check(int ok, const char* what, int line) {
  if (ok) return;
  fprintf(stderr, "c_smoke.c:%d: %s\n", line, what);
  ++failures;
}
#define CHECK(condition) check((condition) != 0, #condition, __LINE__)
#define CHECK_OK(call) check((call) == QUIRE_OK, #call, __LINE__)

typedef struct world {
  quire_error error;
  quire_policy policy;
  quire_group_desc group;
  quire_cache_desc desc;
  quire_cache* cache;
  void* block[5];
  int32_t slot;
  float k[TOKENS * KV_HEADS * DIM];
  float v[TOKENS * KV_HEADS * DIM];
  float q[TOKENS * Q_HEADS * DIM];
  float out[TOKENS * Q_HEADS * DIM];
  float lse[TOKENS * Q_HEADS];
} world;

static quire_rows rows_of(float* data) {
  quire_rows rows = {NULL, QUIRE_F32, 0, 0, 0, 0};
  rows.data = data;
  return rows;
}

/* The values are all equal, so every output is that value, whatever the weights. */
static int is_value(const float* out, uint32_t count) {
  uint32_t i;
  for (i = 0; i < count; ++i) {
    if (!(fabsf(out[i] - VALUE) <= (float)TOKENS * FLT_EPSILON)) return 0;
  }
  return 1;
}

static void* aligned_block(void** block, uint64_t bytes, uint32_t alignment) {
  uintptr_t address;
  *block = malloc((size_t)bytes + alignment);
  if (*block == NULL) abort();
  address = (uintptr_t)*block;
  return (unsigned char*)*block + (alignment - address % alignment) % alignment;
}

static void fill(world* w) {
  uint32_t i;
  uint32_t state = 1;
  memset(w, 0, sizeof(*w));
  for (i = 0; i < TOKENS * KV_HEADS * DIM; ++i) {
    state = state * 1664525u + 1013904223u;
    w->k[i] = (float)(state >> 8) / 16777216.0f - 0.5f;
    w->v[i] = VALUE;
  }
  for (i = 0; i < TOKENS * Q_HEADS * DIM; ++i) w->q[i] = w->k[i % (TOKENS * KV_HEADS * DIM)];
}

static void start(world* w) {
  const quire_error error = QUIRE_ERROR_INIT;
  const quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  const quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
  const quire_policy policy = QUIRE_POLICY_INIT;
  quire_layout layout = QUIRE_LAYOUT_INIT;
  uint32_t abi = 77;
  w->error = error;
  w->group = group;
  w->policy = policy;
  w->desc = desc;
  CHECK(quire_version(&abi) ==
        QUIRE_VERSION_MAJOR * 10000u + QUIRE_VERSION_MINOR * 100u + QUIRE_VERSION_PATCH);
  CHECK(abi == QUIRE_ABI_VERSION);
  CHECK(strcmp(quire_status_text(QUIRE_OUT_OF_PAGES), "out of pages") == 0);
  CHECK_OK(quire_recipe_get(QUIRE_RECIPE_DIFFKV_UPSTREAM, &w->policy, &w->group, NULL));
  w->group.layers = LAYERS;
  w->group.q_heads = Q_HEADS;
  w->group.kv_heads = KV_HEADS;
  w->group.recent_window = w->policy.recent_window = 8;
  w->group.layout.head_dim_k = DIM;
  w->group.layout.head_dim_v = DIM;
  w->group.layout.error = &w->error;
  CHECK_OK(quire_layout_make(&w->group.layout, &layout));
  CHECK(layout.tier_count == 2 && layout.page_bytes > 0);
  w->group.layout.error = NULL;
  w->desc.flags = QUIRE_CACHE_SHARING;
  w->desc.max_sequences = 2;
  w->desc.max_tokens = 2 * TOKENS;
  w->desc.groups = &w->group;
  w->desc.pages = 64;
  w->desc.error = &w->error;
}

static void create(world* w) {
  quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
  quire_cache_memory memory = QUIRE_CACHE_MEMORY_INIT;
  CHECK_OK(quire_cache_sizes_get(&w->desc, &sizes));
  memory.host = aligned_block(&w->block[0], sizes.host, sizes.alignment);
  memory.pages = aligned_block(&w->block[1], sizes.pages, sizes.alignment);
  memory.rings = aligned_block(&w->block[2], sizes.rings, sizes.alignment);
  memory.tables = aligned_block(&w->block[3], sizes.tables, sizes.alignment);
  memory.workspace = aligned_block(&w->block[4], sizes.workspace, sizes.alignment);
  memory.host_bytes = sizes.host;
  memory.pages_bytes = sizes.pages;
  memory.rings_bytes = sizes.rings;
  memory.tables_bytes = sizes.tables;
  memory.workspace_bytes = sizes.workspace;
  CHECK_OK(quire_cache_create(&w->desc, &memory, &w->cache));
}

static void prompt(world* w) {
  quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
  quire_prefill_begin_args begin = QUIRE_PREFILL_BEGIN_ARGS_INIT;
  uint64_t pages = 0;
  uint32_t layer;
  open.policy = &w->policy;
  open.error = &w->error;
  CHECK_OK(quire_seq_open(w->cache, &open, &w->slot));
  CHECK_OK(quire_pages_for(w->cache, &w->policy, TOKENS, &pages, NULL, &w->error));
  CHECK(pages > 0);
  begin.slot = w->slot;
  begin.tokens = TOKENS;
  begin.error = &w->error;
  CHECK_OK(quire_prefill_begin(w->cache, &begin));
  CHECK_OK(quire_prefill_cancel(w->cache, w->slot, &w->error));
  CHECK_OK(quire_prefill_begin(w->cache, &begin));
  for (layer = 0; layer < LAYERS; ++layer) {
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = w->slot;
    args.layer = layer;
    args.k = rows_of(w->k);
    args.v = rows_of(w->v);
    args.q = rows_of(w->q);
    args.q_rows = TOKENS;
    args.error = &w->error;
    CHECK_OK(quire_prefill_layer(w->cache, &args));
  }
  CHECK_OK(quire_prefill_end(w->cache, w->slot, &w->error));
}

static void step(world* w) {
  quire_step_begin_args begin = QUIRE_STEP_BEGIN_ARGS_INIT;
  uint64_t pages[2] = {0, 0};
  uint32_t layer;
  begin.slots = &w->slot;
  begin.batch = 1;
  begin.error = &w->error;
  CHECK_OK(quire_headroom_pages(w->cache, &w->slot, 1, 1, &pages[0], &pages[1], &w->error));
  CHECK(pages[0] <= pages[1]);
  CHECK_OK(quire_step_begin(w->cache, &begin));
  CHECK_OK(quire_step_cancel(w->cache, &w->error));
  CHECK_OK(quire_step_begin(w->cache, &begin));
  for (layer = 0; layer < LAYERS; ++layer) {
    quire_append_args append = QUIRE_APPEND_ARGS_INIT;
    quire_attention_args attention = QUIRE_ATTENTION_ARGS_INIT;
    quire_explain_report report = QUIRE_EXPLAIN_REPORT_INIT;
    append.layer = attention.layer = layer;
    append.k = rows_of(w->k);
    append.v = rows_of(w->v);
    append.error = attention.error = &w->error;
    CHECK_OK(quire_append(w->cache, &append));
    attention.q = rows_of(w->q);
    attention.out = rows_of(w->out);
    attention.lse = w->lse;
    CHECK_OK(quire_explain(w->cache, &attention, &report));
    CHECK(report.supported == 1 && report.kernel[0] != '\0');
    CHECK_OK(quire_attention(w->cache, &attention));
    CHECK(is_value(w->out, Q_HEADS * DIM));
  }
  CHECK_OK(quire_step_end(w->cache, &w->error));
}

static void read_back(world* w) {
  uint8_t plan[LAYERS * KV_HEADS * (TOKENS + 1)];
  int32_t positions[TOKENS + 1];
  uint32_t count = 0;
  quire_extend_args extend = QUIRE_EXTEND_ARGS_INIT;
  quire_plan_apply_args apply = QUIRE_PLAN_APPLY_ARGS_INIT;
  quire_gather_args gather = QUIRE_GATHER_ARGS_INIT;
  quire_query_args query = QUIRE_QUERY_ARGS_INIT;
  extend.slot = apply.slot = gather.slot = query.slot = w->slot;
  extend.error = apply.error = gather.error = query.error = &w->error;
  extend.rows = 20;
  extend.first_position = (int32_t)TOKENS;
  extend.q = rows_of(w->q);
  extend.out = rows_of(w->out);
  extend.lse = w->lse;
  CHECK_OK(quire_extend(w->cache, &extend));
  CHECK(is_value(w->out, 20 * Q_HEADS * DIM));
  memset(plan, 255, sizeof(plan));
  apply.layer_count = LAYERS;
  apply.tokens = TOKENS + 1;
  apply.tiers = plan;
  CHECK_OK(quire_plan_apply(w->cache, &apply));
  gather.capacity = TOKENS;
  gather.k = rows_of(w->out);
  gather.positions = positions;
  gather.count = &count;
  CHECK_OK(quire_gather(w->cache, &gather));
  query.capacity = TOKENS + 1;
  query.positions = positions;
  query.count = &count;
  CHECK_OK(quire_query(w->cache, &query));
  CHECK(count > 0 && count <= TOKENS + 1);
}

static void share(world* w) {
  quire_seq_fork_args fork = QUIRE_SEQ_FORK_ARGS_INIT;
  quire_seq_freeze_args freeze = QUIRE_SEQ_FREEZE_ARGS_INIT;
  quire_prefix_find_args find = QUIRE_PREFIX_FIND_ARGS_INIT;
  int32_t child = -1;
  fork.slot = freeze.slot = w->slot;
  fork.error = &w->error;
  CHECK_OK(quire_seq_fork(w->cache, &fork, &child));
  CHECK(child >= 0 && child != w->slot);
  CHECK(quire_seq_freeze(w->cache, &freeze) == QUIRE_BAD_STATE); /* it has taken a step */
  CHECK(quire_prefix_find(w->cache, &find) == QUIRE_INVALID_ARGUMENT);
  CHECK_OK(quire_prefix_evict(w->cache, 0, NULL, NULL, &w->error));
  CHECK_OK(quire_seq_close(w->cache, child, &w->error));
}

static void move(world* w) {
  uint64_t bytes = 0;
  void* frame;
  int32_t copy = -1;
  CHECK_OK(quire_seq_export_bytes(w->cache, w->slot, &bytes, &w->error));
  frame = malloc((size_t)bytes);
  CHECK(frame != NULL);
  CHECK_OK(quire_seq_export(w->cache, w->slot, frame, bytes, &w->error));
  CHECK_OK(quire_seq_import(w->cache, frame, bytes, &copy, &w->error));
  CHECK(copy >= 0 && copy != w->slot);
  CHECK_OK(quire_seq_close(w->cache, copy, &w->error));
  free(frame);
}

static void cut(world* w) {
  quire_seq_remove_span_args span = QUIRE_SEQ_REMOVE_SPAN_ARGS_INIT;
  quire_seq_truncate_args back = QUIRE_SEQ_TRUNCATE_ARGS_INIT;
  quire_accept_args accept = QUIRE_ACCEPT_ARGS_INIT;
  uint32_t lossy = 7;
  span.slot = back.slot = w->slot;
  span.first = span.end = 4;
  span.error = back.error = &w->error;
  CHECK_OK(quire_seq_remove_span(w->cache, &span));
  back.tokens = TOKENS + 1;
  back.lossy = &lossy;
  CHECK_OK(quire_seq_truncate(w->cache, &back));
  CHECK(lossy == 0);
  accept.slots = &w->slot;
  accept.batch = 1;
  accept.counts = &lossy;
  CHECK(quire_accept(w->cache, &accept) == QUIRE_BAD_STATE);
}

static void look(world* w) {
  quire_stats stats = QUIRE_STATS_INIT;
  quire_seq_info info = QUIRE_SEQ_INFO_INIT;
  CHECK_OK(quire_stats_get(w->cache, &stats, NULL));
  CHECK(stats.sequences == 1 && stats.steps == 1);
  CHECK_OK(quire_seq_info_get(w->cache, w->slot, &info, NULL));
  CHECK(info.tokens == TOKENS + 1 && info.total_bytes > 0);
  CHECK_OK(quire_seq_close(w->cache, w->slot, &w->error));
  CHECK_OK(quire_stats_get(w->cache, &stats, NULL));
  CHECK(stats.sequences == 0 && stats.live_pages == 0);
}

static quire_codec_args codec_args(world* w, uint32_t bits, uint8_t* codes, uint16_t* meta) {
  quire_codec_args args = QUIRE_CODEC_ARGS_INIT;
  args.format.grid = QUIRE_GRID_AFFINE;
  args.format.bits = bits;
  args.head_dim = DIM;
  args.count = 3;
  args.rows = rows_of(w->v);
  args.codes[0] = codes;
  args.meta = meta;
  args.error = &w->error;
  return args;
}

static void plain(world* w) {
  uint8_t codes[2][3 * DIM];
  uint16_t meta[2][3 * 2];
  quire_codec_args from = codec_args(w, 8, codes[0], meta[0]);
  quire_codec_args to = codec_args(w, 4, codes[1], meta[1]);
  quire_merge_args merge = QUIRE_MERGE_ARGS_INIT;
  quire_part parts[2];
  float part_lse[2] = {1.0f, 2.0f};
  memset(parts, 0, sizeof(parts));
  CHECK_OK(quire_encode(&from));
  CHECK_OK(quire_demote(&from, &to));
  to.rows = rows_of(w->out);
  CHECK_OK(quire_decode(&to));
  CHECK(is_value(w->out, 3 * DIM));
  parts[0].out = parts[1].out = rows_of(w->v);
  parts[0].lse = &part_lse[0];
  parts[1].lse = &part_lse[1];
  merge.parts = parts;
  merge.part_count = 2;
  merge.rows = merge.q_heads = 1;
  merge.head_dim_v = DIM;
  merge.out = rows_of(w->out);
  merge.lse = w->lse;
  merge.error = &w->error;
  CHECK_OK(quire_merge(&merge));
  CHECK(is_value(w->out, DIM) && w->lse[0] > part_lse[1]);
}

static void pages(world* w) {
  int32_t ids[4] = {0, 1, 2, 3};
  int32_t out[2] = {-1, -1};
  uint32_t counts[2] = {1, 1};
  uint64_t head = 0;
  uint64_t tail = 4;
  quire_pages_args args = QUIRE_PAGES_ARGS_INIT;
  args.ids = ids;
  args.capacity = 4;
  args.head = &head;
  args.tail = &tail;
  args.counts = counts;
  args.rows = 2;
  args.out = out;
  args.row_stride = 1;
  args.error = &w->error;
  CHECK_OK(quire_pages_take(&args));
  CHECK(out[0] == 0 && out[1] == 1 && head == 2);
  CHECK_OK(quire_pages_return(&args));
  CHECK(tail == 6);
}

/* One page of an engine's own pool. */
static void view(world* w) {
  const int32_t table[1] = {0};
  const int32_t position[1] = {3};
  uint32_t tokens[1] = {0};
  void* pool_block = NULL;
  void* work_block = NULL;
  uint64_t bytes = 0;
  quire_layout layout = QUIRE_LAYOUT_INIT;
  quire_view engine = QUIRE_VIEW_INIT;
  quire_view_append_args append = QUIRE_VIEW_APPEND_ARGS_INIT;
  quire_view_attention_args attention = QUIRE_VIEW_ATTENTION_ARGS_INIT;
  engine.layout = w->group.layout;
  engine.layout.tier_count = 1;
  CHECK_OK(quire_layout_make(&engine.layout, &layout));
  engine.q_heads = engine.kv_heads = engine.sequences = 1;
  engine.pool = aligned_block(&pool_block, layout.page_bytes, 64);
  engine.table = table;
  engine.table_capacity = 1;
  engine.tokens = tokens;
  append.view = attention.view = &engine;
  append.count = 3;
  append.k = rows_of(w->k);
  append.v = rows_of(w->v);
  append.error = attention.error = &w->error;
  CHECK_OK(quire_view_append(&append));
  tokens[0] = 3;
  attention.first_position = position;
  attention.q = rows_of(w->q);
  attention.out = rows_of(w->out);
  CHECK_OK(quire_view_workspace(&attention, &bytes));
  attention.workspace = aligned_block(&work_block, bytes, 128);
  attention.workspace_bytes = bytes;
  CHECK_OK(quire_view_attention(&attention));
  CHECK(is_value(w->out, DIM));
  free(pool_block);
  free(work_block);
}

int main(void) {
  void (*const part[])(world*) = {
      fill, start, create, prompt, step, read_back, share, move, cut, look, plain, pages, view};
  static world w;
  int i;
  for (i = 0; i < (int)(sizeof(part) / sizeof(part[0])); ++i) part[i](&w);
  quire_cache_destroy(w.cache);
  quire_cache_destroy(NULL);
  for (i = 0; i < 5; ++i) free(w.block[i]);
  if (failures > 0) fprintf(stderr, "last error: %s\n", w.error.text);
  return failures > 0 ? 1 : 0;
}
