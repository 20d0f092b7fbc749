/* Oracle: offsets and sizes of the structs of a cache and of its prompts and steps,
 * fixed once for 64-bit targets. Fields are only appended: a line of this file never changes, lines
 * are added. Compiled with -Wpadded, so that padding has a name. */
#include "abi/layout.h"

SIZE(quire_error, 280);
AT(quire_error, struct_size, 0);
AT(quire_error, status, 4);
AT(quire_error, needed, 8);
AT(quire_error, given, 16);
AT(quire_error, field, 24);
AT(quire_error, text, 72);

SIZE(quire_vector_format, 16);
AT(quire_vector_format, grid, 0);
AT(quire_vector_format, bits, 4);
AT(quire_vector_format, group, 8);
AT(quire_vector_format, transform, 12);

SIZE(quire_format, 32);
AT(quire_format, k, 0);
AT(quire_format, v, 16);

SIZE(quire_layout_desc, 168);
AT(quire_layout_desc, struct_size, 0);
AT(quire_layout_desc, flags, 4);
AT(quire_layout_desc, head_dim_k, 8);
AT(quire_layout_desc, head_dim_v, 12);
AT(quire_layout_desc, tier_count, 16);
AT(quire_layout_desc, expected_tokens, 20);
AT(quire_layout_desc, page_bytes, 24);
AT(quire_layout_desc, tier, 32);
AT(quire_layout_desc, error, 160);

SIZE(quire_tier_layout, 56);
AT(quire_tier_layout, tokens, 0);
AT(quire_tier_layout, record_bytes, 4);
AT(quire_tier_layout, k_plane, 8);
AT(quire_tier_layout, v_plane, 16);
AT(quire_tier_layout, k_meta, 24);
AT(quire_tier_layout, v_meta, 28);
AT(quire_tier_layout, score, 32);
AT(quire_tier_layout, position, 36);
AT(quire_tier_layout, bytes, 40);
AT(quire_tier_layout, waste, 48);

SIZE(quire_layout, 248);
AT(quire_layout, struct_size, 0);
AT(quire_layout, flags, 4);
AT(quire_layout, layout_version, 8);
AT(quire_layout, tier_count, 12);
AT(quire_layout, page_bytes, 16);
AT(quire_layout, tier, 24);

SIZE(quire_policy, 80);
AT(quire_policy, struct_size, 0);
AT(quire_policy, flags, 4);
AT(quire_policy, kind, 8);
AT(quire_policy, statistic, 12);
AT(quire_policy, significance, 16);
AT(quire_policy, step_rule, 20);
AT(quire_policy, sink_tokens, 24);
AT(quire_policy, recent_window, 28);
AT(quire_policy, tail_queries, 32);
AT(quire_policy, min_queries, 36);
AT(quire_policy, cadence, 40);
AT(quire_policy, pool, 44);
AT(quire_policy, pool_width, 48);
AT(quire_policy, budget_tokens, 52);
AT(quire_policy, alpha_high, 56);
AT(quire_policy, alpha_low, 60);
AT(quire_policy, budget_bytes, 64);
AT(quire_policy, byte_target, 72);

SIZE(quire_threshold, 16);
AT(quire_threshold, layer, 0);
AT(quire_threshold, head, 4);
AT(quire_threshold, alpha_high, 8);
AT(quire_threshold, alpha_low, 12);

SIZE(quire_group_desc, 240);
AT(quire_group_desc, struct_size, 0);
AT(quire_group_desc, flags, 4);
AT(quire_group_desc, layers, 8);
AT(quire_group_desc, q_heads, 12);
AT(quire_group_desc, kv_heads, 16);
AT(quire_group_desc, sink_tokens, 20);
AT(quire_group_desc, recent_window, 24);
AT(quire_group_desc, max_draft, 28);
AT(quire_group_desc, ring_format, 32);
AT(quire_group_desc, transform_seed, 36);
AT(quire_group_desc, layout, 40);
AT(quire_group_desc, page_stride, 208);
AT(quire_group_desc, pages, 216);
AT(quire_group_desc, layer_ids, 224);
AT(quire_group_desc, sliding_window, 232);
AT(quire_group_desc, reserved, 236);

SIZE(quire_cache_desc, 56);
AT(quire_cache_desc, struct_size, 0);
AT(quire_cache_desc, flags, 4);
AT(quire_cache_desc, max_sequences, 8);
AT(quire_cache_desc, max_batch, 12);
AT(quire_cache_desc, max_tokens, 16);
AT(quire_cache_desc, threads, 20);
AT(quire_cache_desc, max_splits, 24);
AT(quire_cache_desc, group_count, 28);
AT(quire_cache_desc, groups, 32);
AT(quire_cache_desc, pages, 40);
AT(quire_cache_desc, error, 48);

SIZE(quire_cache_sizes, 64);
AT(quire_cache_sizes, struct_size, 0);
AT(quire_cache_sizes, alignment, 4);
AT(quire_cache_sizes, host, 8);
AT(quire_cache_sizes, pages, 16);
AT(quire_cache_sizes, rings, 24);
AT(quire_cache_sizes, tables, 32);
AT(quire_cache_sizes, workspace, 40);
AT(quire_cache_sizes, page_bytes, 48);
AT(quire_cache_sizes, ring_block_bytes, 56);

SIZE(quire_cache_memory, 88);
AT(quire_cache_memory, struct_size, 0);
AT(quire_cache_memory, flags, 4);
AT(quire_cache_memory, host, 8);
AT(quire_cache_memory, pages, 16);
AT(quire_cache_memory, rings, 24);
AT(quire_cache_memory, tables, 32);
AT(quire_cache_memory, workspace, 40);
AT(quire_cache_memory, host_bytes, 48);
AT(quire_cache_memory, pages_bytes, 56);
AT(quire_cache_memory, rings_bytes, 64);
AT(quire_cache_memory, tables_bytes, 72);
AT(quire_cache_memory, workspace_bytes, 80);

SIZE(quire_seq_open_args, 64);
AT(quire_seq_open_args, struct_size, 0);
AT(quire_seq_open_args, flags, 4);
AT(quire_seq_open_args, policy, 8);
AT(quire_seq_open_args, thresholds, 16);
AT(quire_seq_open_args, threshold_count, 24);
AT(quire_seq_open_args, k_offset, 32);
AT(quire_seq_open_args, v_offset, 40);
AT(quire_seq_open_args, error, 48);
AT(quire_seq_open_args, group_policies, 56);

SIZE(quire_seq_fork_args, 40);
AT(quire_seq_fork_args, struct_size, 0);
AT(quire_seq_fork_args, flags, 4);
AT(quire_seq_fork_args, slot, 8);
AT(quire_seq_fork_args, reserved, 12);
AT(quire_seq_fork_args, thresholds, 16);
AT(quire_seq_fork_args, threshold_count, 24);
AT(quire_seq_fork_args, error, 32);

SIZE(quire_seq_freeze_args, 40);
AT(quire_seq_freeze_args, struct_size, 0);
AT(quire_seq_freeze_args, flags, 4);
AT(quire_seq_freeze_args, slot, 8);
AT(quire_seq_freeze_args, token_count, 12);
AT(quire_seq_freeze_args, token_ids, 16);
AT(quire_seq_freeze_args, identity, 24);
AT(quire_seq_freeze_args, error, 32);

SIZE(quire_prefix_find_args, 56);
AT(quire_prefix_find_args, struct_size, 0);
AT(quire_prefix_find_args, flags, 4);
AT(quire_prefix_find_args, token_ids, 8);
AT(quire_prefix_find_args, token_count, 16);
AT(quire_prefix_find_args, reserved, 20);
AT(quire_prefix_find_args, open, 24);
AT(quire_prefix_find_args, slot, 32);
AT(quire_prefix_find_args, tokens, 40);
AT(quire_prefix_find_args, error, 48);

SIZE(quire_seq_truncate_args, 32);
AT(quire_seq_truncate_args, struct_size, 0);
AT(quire_seq_truncate_args, flags, 4);
AT(quire_seq_truncate_args, slot, 8);
AT(quire_seq_truncate_args, tokens, 12);
AT(quire_seq_truncate_args, lossy, 16);
AT(quire_seq_truncate_args, error, 24);

SIZE(quire_seq_remove_span_args, 40);
AT(quire_seq_remove_span_args, struct_size, 0);
AT(quire_seq_remove_span_args, flags, 4);
AT(quire_seq_remove_span_args, slot, 8);
AT(quire_seq_remove_span_args, first, 12);
AT(quire_seq_remove_span_args, end, 16);
AT(quire_seq_remove_span_args, reserved, 20);
AT(quire_seq_remove_span_args, removed, 24);
AT(quire_seq_remove_span_args, error, 32);

SIZE(quire_accept_args, 56);
AT(quire_accept_args, struct_size, 0);
AT(quire_accept_args, flags, 4);
AT(quire_accept_args, slots, 8);
AT(quire_accept_args, batch, 16);
AT(quire_accept_args, row_stride, 20);
AT(quire_accept_args, counts, 24);
AT(quire_accept_args, rows, 32);
AT(quire_accept_args, parallel, 40);
AT(quire_accept_args, error, 48);

SIZE(quire_rows, 40);
AT(quire_rows, data, 0);
AT(quire_rows, dtype, 8);
AT(quire_rows, reserved, 12);
AT(quire_rows, sequence_stride, 16);
AT(quire_rows, token_stride, 24);
AT(quire_rows, head_stride, 32);

SIZE(quire_rule, 32);
AT(quire_rule, scale, 0);
AT(quire_rule, soft_cap, 4);
AT(quire_rule, sliding_window, 8);
AT(quire_rule, reserved, 12);
AT(quire_rule, alibi_slopes, 16);
AT(quire_rule, sink_logits, 24);

SIZE(quire_parallel, 24);
AT(quire_parallel, run, 0);
AT(quire_parallel, user, 8);
AT(quire_parallel, width, 16);
AT(quire_parallel, reserved, 20);

SIZE(quire_prefill_begin_args, 24);
AT(quire_prefill_begin_args, struct_size, 0);
AT(quire_prefill_begin_args, flags, 4);
AT(quire_prefill_begin_args, slot, 8);
AT(quire_prefill_begin_args, tokens, 12);
AT(quire_prefill_begin_args, error, 16);

SIZE(quire_prefill_layer_args, 216);
AT(quire_prefill_layer_args, struct_size, 0);
AT(quire_prefill_layer_args, flags, 4);
AT(quire_prefill_layer_args, slot, 8);
AT(quire_prefill_layer_args, layer, 12);
AT(quire_prefill_layer_args, k, 16);
AT(quire_prefill_layer_args, v, 56);
AT(quire_prefill_layer_args, q, 96);
AT(quire_prefill_layer_args, q_rows, 136);
AT(quire_prefill_layer_args, reserved, 140);
AT(quire_prefill_layer_args, lse, 144);
AT(quire_prefill_layer_args, rule, 152);
AT(quire_prefill_layer_args, plan, 184);
AT(quire_prefill_layer_args, plan_out, 192);
AT(quire_prefill_layer_args, parallel, 200);
AT(quire_prefill_layer_args, error, 208);

SIZE(quire_plan_move, 16);
AT(quire_plan_move, layer, 0);
AT(quire_plan_move, head, 4);
AT(quire_plan_move, position, 8);
AT(quire_plan_move, to, 12);
AT(quire_plan_move, pad, 13);

SIZE(quire_step_begin_args, 104);
AT(quire_step_begin_args, struct_size, 0);
AT(quire_step_begin_args, flags, 4);
AT(quire_step_begin_args, slots, 8);
AT(quire_step_begin_args, batch, 16);
AT(quire_step_begin_args, rows, 20);
AT(quire_step_begin_args, plan, 24);
AT(quire_step_begin_args, plan_count, 32);
AT(quire_step_begin_args, plan_out, 40);
AT(quire_step_begin_args, plan_capacity, 48);
AT(quire_step_begin_args, plan_out_count, 56);
AT(quire_step_begin_args, error, 64);
AT(quire_step_begin_args, row_counts, 72);
AT(quire_step_begin_args, draft_mask, 80);
AT(quire_step_begin_args, on_shortage, 88);
AT(quire_step_begin_args, reserved, 92);
AT(quire_step_begin_args, admitted, 96);

SIZE(quire_append_args, 112);
AT(quire_append_args, struct_size, 0);
AT(quire_append_args, flags, 4);
AT(quire_append_args, layer, 8);
AT(quire_append_args, reserved, 12);
AT(quire_append_args, k, 16);
AT(quire_append_args, v, 56);
AT(quire_append_args, parallel, 96);
AT(quire_append_args, error, 104);

SIZE(quire_attention_args, 168);
AT(quire_attention_args, struct_size, 0);
AT(quire_attention_args, flags, 4);
AT(quire_attention_args, layer, 8);
AT(quire_attention_args, rows, 12);
AT(quire_attention_args, q, 16);
AT(quire_attention_args, out, 56);
AT(quire_attention_args, lse, 96);
AT(quire_attention_args, lse_base_2, 104);
AT(quire_attention_args, splits, 108);
AT(quire_attention_args, score_rows, 112);
AT(quire_attention_args, reserved, 116);
AT(quire_attention_args, rule, 120);
AT(quire_attention_args, parallel, 152);
AT(quire_attention_args, error, 160);
