/* Oracle: rule of quire.h: an initialiser sets struct_size and leaves everything 0, but for one
 * tier and one group. Compiled with all warnings as errors. */
#include <stdio.h>
#include <string.h>

#include "quire/quire.h"

static int failures = 0;

/* struct_size, then zeros. */
static void check(const char* name, const void* data, size_t size) {
  const unsigned char* bytes = (const unsigned char*)data;
  uint32_t named;
  size_t i;
  memcpy(&named, data, sizeof(named));
  if (named != size) {
    fprintf(stderr, "%s: struct_size is %u, not %u\n", name, (unsigned)named, (unsigned)size);
    ++failures;
  }
  for (i = sizeof(named); i < size; ++i) {
    if (bytes[i] == 0) continue;
    fprintf(stderr, "%s: byte %u is not 0\n", name, (unsigned)i);
    ++failures;
  }
}

/* Every initialiser of quire.h; the list is compared with the header by tests/abi/symbols.sh. */
#define CHECK(type, init)                \
  do {                                   \
    type value = init;                   \
    check(#init, &value, sizeof(value)); \
  } while (0)

int main(void) {
  quire_layout_desc layout = QUIRE_LAYOUT_DESC_INIT;
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  quire_cache_desc cache = QUIRE_CACHE_DESC_INIT;
  quire_view view = QUIRE_VIEW_INIT;
  if (layout.tier_count != 1 || group.layout.tier_count != 1 || view.layout.tier_count != 1 ||
      cache.group_count != 1 || group.layout.struct_size != sizeof(layout) ||
      view.layout.struct_size != sizeof(layout))
    ++failures;
  layout.tier_count = group.layout.tier_count = view.layout.tier_count = 0;
  cache.group_count = group.layout.struct_size = view.layout.struct_size = 0;
  check("QUIRE_LAYOUT_DESC_INIT", &layout, sizeof(layout));
  check("QUIRE_GROUP_DESC_INIT", &group, sizeof(group));
  check("QUIRE_CACHE_DESC_INIT", &cache, sizeof(cache));
  check("QUIRE_VIEW_INIT", &view, sizeof(view));
  CHECK(quire_error, QUIRE_ERROR_INIT);
  CHECK(quire_layout, QUIRE_LAYOUT_INIT);
  CHECK(quire_cache_sizes, QUIRE_CACHE_SIZES_INIT);
  CHECK(quire_cache_memory, QUIRE_CACHE_MEMORY_INIT);
  CHECK(quire_policy, QUIRE_POLICY_INIT);
  CHECK(quire_seq_open_args, QUIRE_SEQ_OPEN_ARGS_INIT);
  CHECK(quire_seq_fork_args, QUIRE_SEQ_FORK_ARGS_INIT);
  CHECK(quire_seq_freeze_args, QUIRE_SEQ_FREEZE_ARGS_INIT);
  CHECK(quire_prefix_find_args, QUIRE_PREFIX_FIND_ARGS_INIT);
  CHECK(quire_seq_truncate_args, QUIRE_SEQ_TRUNCATE_ARGS_INIT);
  CHECK(quire_seq_remove_span_args, QUIRE_SEQ_REMOVE_SPAN_ARGS_INIT);
  CHECK(quire_accept_args, QUIRE_ACCEPT_ARGS_INIT);
  CHECK(quire_prefill_begin_args, QUIRE_PREFILL_BEGIN_ARGS_INIT);
  CHECK(quire_prefill_layer_args, QUIRE_PREFILL_LAYER_ARGS_INIT);
  CHECK(quire_step_begin_args, QUIRE_STEP_BEGIN_ARGS_INIT);
  CHECK(quire_append_args, QUIRE_APPEND_ARGS_INIT);
  CHECK(quire_attention_args, QUIRE_ATTENTION_ARGS_INIT);
  CHECK(quire_extend_args, QUIRE_EXTEND_ARGS_INIT);
  CHECK(quire_plan_apply_args, QUIRE_PLAN_APPLY_ARGS_INIT);
  CHECK(quire_gather_args, QUIRE_GATHER_ARGS_INIT);
  CHECK(quire_stats, QUIRE_STATS_INIT);
  CHECK(quire_seq_info, QUIRE_SEQ_INFO_INIT);
  CHECK(quire_query_args, QUIRE_QUERY_ARGS_INIT);
  CHECK(quire_explain_report, QUIRE_EXPLAIN_REPORT_INIT);
  CHECK(quire_codec_args, QUIRE_CODEC_ARGS_INIT);
  CHECK(quire_merge_args, QUIRE_MERGE_ARGS_INIT);
  CHECK(quire_view_append_args, QUIRE_VIEW_APPEND_ARGS_INIT);
  CHECK(quire_view_attention_args, QUIRE_VIEW_ATTENTION_ARGS_INIT);
  CHECK(quire_pages_args, QUIRE_PAGES_ARGS_INIT);
  if (failures > 0) fprintf(stderr, "%d initialisers are wrong\n", failures);
  return failures > 0 ? 1 : 0;
}
