/* Oracle: numbers of quire.h that are part of the ABI, of formats and of logs. They are never
 * reused: a line of this file never changes, lines are added. */
#include "abi/layout.h"

FIX(QUIRE_OK == 0, "quire_status_code");
FIX(QUIRE_INVALID_ARGUMENT == 1, "quire_status_code");
FIX(QUIRE_UNSUPPORTED == 2, "quire_status_code");
FIX(QUIRE_BAD_STATE == 3, "quire_status_code");
FIX(QUIRE_OUT_OF_PAGES == 4, "quire_status_code");
FIX(QUIRE_CAPACITY == 5, "quire_status_code");
FIX(QUIRE_MEMORY_TOO_SMALL == 6, "quire_status_code");
FIX(QUIRE_MISALIGNED == 7, "quire_status_code");
FIX(QUIRE_ABI_MISMATCH == 8, "quire_status_code");
FIX(QUIRE_BAD_VALUE == 9, "quire_status_code");
FIX(QUIRE_NOT_REVERSIBLE == 10, "quire_status_code");
FIX(QUIRE_INTERNAL == 11, "quire_status_code");

FIX(QUIRE_F32 == 1, "quire_dtype");
FIX(QUIRE_F16 == 2, "quire_dtype");
FIX(QUIRE_BF16 == 3, "quire_dtype");

FIX(QUIRE_GRID_F16 == 1, "quire_grid");
FIX(QUIRE_GRID_BF16 == 2, "quire_grid");
FIX(QUIRE_GRID_AFFINE == 3, "quire_grid");
FIX(QUIRE_GRID_SYMMETRIC_UNIFORM == 4, "quire_grid");
FIX(QUIRE_GRID_SYMMETRIC_TABLE == 5, "quire_grid");

FIX(QUIRE_TRANSFORM_NONE == 0, "quire_transform");
FIX(QUIRE_TRANSFORM_HADAMARD == 1, "quire_transform");
FIX(QUIRE_TRANSFORM_OFFSET == 2, "quire_transform");

FIX(QUIRE_LAYOUT_NO_SCORE == 1, "quire_layout_flag");
FIX(QUIRE_LAYOUT_NO_POSITION == 2, "quire_layout_flag");
FIX(QUIRE_LAYOUT_BIAS == 4, "quire_layout_flag");

FIX(QUIRE_RECIPE_KEEP_ALL == 1, "quire_recipe_id");
FIX(QUIRE_RECIPE_DIFFKV_PAPER == 2, "quire_recipe_id");
FIX(QUIRE_RECIPE_DIFFKV_UPSTREAM == 3, "quire_recipe_id");
FIX(QUIRE_RECIPE_STREAMING_LLM == 4, "quire_recipe_id");
FIX(QUIRE_RECIPE_H2O == 5, "quire_recipe_id");
FIX(QUIRE_RECIPE_SNAPKV == 6, "quire_recipe_id");
FIX(QUIRE_RECIPE_QUIRE_UNIFORM == 7, "quire_recipe_id");
FIX(QUIRE_RECIPE_QUIRE_BUDGET == 8, "quire_recipe_id");
FIX(QUIRE_RECIPE_FOREIGN == 9, "quire_recipe_id");

FIX(QUIRE_KEEP_ALL == 1, "quire_policy_kind");
FIX(QUIRE_THRESHOLD == 2, "quire_policy_kind");
FIX(QUIRE_EVICT == 3, "quire_policy_kind");
FIX(QUIRE_FOREIGN == 4, "quire_policy_kind");

FIX(QUIRE_STATISTIC_NONE == 0, "quire_statistic");
FIX(QUIRE_STATISTIC_MAX_SUM == 1, "quire_statistic");
FIX(QUIRE_STATISTIC_MAX_FIRST == 2, "quire_statistic");
FIX(QUIRE_STATISTIC_MEAN_SUM == 3, "quire_statistic");
FIX(QUIRE_STATISTIC_MEAN_SQUARE == 4, "quire_statistic");

FIX(QUIRE_MEAN == 1, "quire_significance");
FIX(QUIRE_ROOT_MEAN == 2, "quire_significance");
FIX(QUIRE_SUM == 3, "quire_significance");
FIX(QUIRE_POSITION == 4, "quire_significance");

FIX(QUIRE_STEP_APPEND == 1, "quire_step_rule");
FIX(QUIRE_STEP_UPSTREAM == 2, "quire_step_rule");
FIX(QUIRE_STEP_PAPER == 3, "quire_step_rule");
FIX(QUIRE_STEP_CLASSIFY == 4, "quire_step_rule");
FIX(QUIRE_STEP_EVICT == 5, "quire_step_rule");

FIX(QUIRE_POLICY_GROWS == 1, "quire_policy_flag");
FIX(QUIRE_POLICY_POSITION_THRESHOLDS == 2, "quire_policy_flag");

FIX(QUIRE_RING_F16 == 1, "quire_ring_format");
FIX(QUIRE_RING_BF16 == 2, "quire_ring_format");
FIX(QUIRE_RING_K8V8 == 3, "quire_ring_format");
FIX(QUIRE_RING_HIGH == 4, "quire_ring_format");

FIX(QUIRE_TRUNCATE_STRICT == 1, "quire_truncate_flag");
FIX(QUIRE_PREFILL_CHECK == 4, "quire_prefill_flag");
FIX(QUIRE_SHORTAGE_ALL == 0, "quire_on_shortage");
FIX(QUIRE_SHORTAGE_PREFIX == 1, "quire_on_shortage");

FIX(QUIRE_CACHE_SATURATE == 1, "quire_cache_flag");

FIX(QUIRE_SEQ_CLOSED == 0, "quire_seq_state");
FIX(QUIRE_SEQ_OPEN == 1, "quire_seq_state");
FIX(QUIRE_SEQ_PREFILL == 2, "quire_seq_state");
FIX(QUIRE_SEQ_STEP == 3, "quire_seq_state");
FIX(QUIRE_SEQ_DRAFT == 4, "quire_seq_state");
FIX(QUIRE_SEQ_BROKEN == 5, "quire_seq_state");
FIX(QUIRE_SEQ_FROZEN == 6, "quire_seq_state");

FIX(QUIRE_NONE == 0xffffffffu, "QUIRE_NONE");
FIX(QUIRE_ALL == 0xffffffffu, "QUIRE_ALL");
FIX(QUIRE_MAX_TIERS == 4, "QUIRE_MAX_TIERS");
