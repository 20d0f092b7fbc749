#include "src/args.hpp"

#include <cmath>

namespace quire {
namespace {

void copy_text(char* to, std::size_t size, const char* from) {
  std::snprintf(to, size, "%s", from);
}

bool aligned(const void* pointer, std::uint64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

template <class ViewT>
Status read_rows_into(const quire_rows& rows,
                      const char* name,
                      const RowsShape& shape,
                      ViewT& view) {
  if (rows.data == nullptr) return invalid(name, "data is not NULL");
  if (rows.dtype < QUIRE_F32 || rows.dtype > QUIRE_BF16) {
    return invalid(name, "dtype is QUIRE_F32, QUIRE_F16 or QUIRE_BF16", 0, rows.dtype);
  }
  view.dtype = static_cast<DType>(rows.dtype);
  if (!aligned(rows.data, dtype_bytes(view.dtype))) {
    return fail(StatusCode::kMisaligned,
                name,
                "data aligned to its dtype",
                dtype_bytes(view.dtype),
                reinterpret_cast<std::uintptr_t>(rows.data) % dtype_bytes(view.dtype));
  }
  view.data = rows.data;
  const bool dense = rows.sequence_stride == 0 && rows.token_stride == 0 && rows.head_stride == 0;
  view.head_stride = dense ? std::int64_t{shape.dim} : rows.head_stride;
  view.token_stride = dense ? std::int64_t{shape.heads} * shape.dim : rows.token_stride;
  view.sequence_stride =
      dense ? std::int64_t{shape.tokens} * shape.heads * shape.dim : rows.sequence_stride;
  return ok_status();
}

}  // namespace

quire_status report(quire_error* error, const Status& status) {
  const auto code = static_cast<quire_status>(status.code);
  if (status.ok() || error == nullptr || error->struct_size < sizeof(quire_error)) return code;
  error->status = code;
  error->needed = status.needed;
  error->given = status.given;
  copy_text(error->field, sizeof(error->field), status.field);
  if (status.needed != 0 || status.given != 0) {
    std::snprintf(error->text,
                  sizeof(error->text),
                  "%s: %s (needed %llu, given %llu)",
                  status.field,
                  status.rule,
                  static_cast<unsigned long long>(status.needed),
                  static_cast<unsigned long long>(status.given));
  } else {
    std::snprintf(error->text, sizeof(error->text), "%s: %s", status.field, status.rule);
  }
  return code;
}

Status read_rows(const quire_rows& rows, const char* name, const RowsShape& shape, RowsView& view) {
  return read_rows_into(rows, name, shape, view);
}

Status read_rows(const quire_rows& rows,
                 const char* name,
                 const RowsShape& shape,
                 MutableRowsView& view) {
  return read_rows_into(rows, name, shape, view);
}

Status read_rule(const quire_rule& rule,
                 std::uint32_t head_dim_k,
                 std::uint32_t q_heads,
                 AttentionRule& out) {
  // 1e30 x 65504 x 256 x 10 is still a float: logits of accepted queries are finite.
  if (!(rule.scale >= 0.0f && rule.scale <= 10.0f))
    return invalid("rule.scale", "0 (default) or a positive number up to 10");
  for (std::uint32_t h = 0; rule.alibi_slopes != nullptr && h < q_heads; ++h) {
    if (!(std::fabs(rule.alibi_slopes[h]) <= 1.0e6f))
      return fail(StatusCode::kBadValue, "rule.alibi_slopes", "finite numbers within +-1e6", 0, h);
  }
  for (std::uint32_t h = 0; rule.sink_logits != nullptr && h < q_heads; ++h) {
    const float sink = rule.sink_logits[h];
    if (!(std::fabs(sink) <= kMaxQuery) && sink != -__builtin_inff()) {
      return fail(
          StatusCode::kBadValue, "rule.sink_logits", "-inf, or finite numbers within +-1e30", 0, h);
    }
  }
  if (!is_finite(rule.soft_cap) || rule.soft_cap < 0.0f) {
    return invalid("rule.soft_cap", "0 (off) or a positive number");
  }
  if (rule.sliding_window < 0)
    return invalid("rule.sliding_window", "0 (off) or a positive number of tokens");
  out.scale = rule.scale > 0.0f ? rule.scale : 1.0f / std::sqrt(static_cast<float>(head_dim_k));
  out.soft_cap = rule.soft_cap;
  out.sliding_window = rule.sliding_window;
  out.alibi_slopes = rule.alibi_slopes;
  out.sink_logits = rule.sink_logits;
  return ok_status();
}

Status read_parallel(const quire_parallel* parallel, std::uint32_t threads, Parallel& out) {
  if (parallel == nullptr) return ok_status();
  if (parallel->run == nullptr) return invalid("parallel.run", "a function, or parallel NULL");
  if (parallel->width < 1 || parallel->width > threads) {
    return invalid(
        "parallel.width", "from 1 to the threads declared at create", threads, parallel->width);
  }
  out.run = parallel->run;
  out.user = parallel->user;
  out.width = parallel->width;
  return ok_status();
}

VectorFormat to_format(const quire_vector_format& format) {
  return {static_cast<Grid>(format.grid), format.bits, format.group, format.transform};
}

Format to_format(const quire_format& format) { return {to_format(format.k), to_format(format.v)}; }

Status check_embedded(const quire_layout_desc& desc) {
  if (desc.struct_size != sizeof(quire_layout_desc)) {
    return fail(StatusCode::kAbiMismatch,
                "struct_size",
                "the size of this version's struct",
                sizeof(quire_layout_desc),
                desc.struct_size);
  }
  quire_layout_desc unused;
  return read_args(&desc, "layout", kLayoutFlags, unused);
}

Status to_layout_spec(const quire_layout_desc& desc, PageLayoutSpec& spec) {
  if ((desc.flags & QUIRE_LAYOUT_BIAS) != 0) {
    return fail(
        StatusCode::kUnsupported, "flags", "no QUIRE_LAYOUT_BIAS: logit biases are reserved");
  }
  if (desc.tier_count < 1 || desc.tier_count > kMaxTiers)
    return invalid("tier_count", "1 or 2", kMaxTiers, desc.tier_count);
  spec.tier_count = desc.tier_count;
  for (std::uint32_t t = 0; t < desc.tier_count; ++t) spec.tier[t] = to_format(desc.tier[t]);
  spec.head_dim_k = desc.head_dim_k;
  spec.head_dim_v = desc.head_dim_v;
  spec.fields.score = (desc.flags & QUIRE_LAYOUT_NO_SCORE) == 0;
  spec.fields.position = (desc.flags & QUIRE_LAYOUT_NO_POSITION) == 0;
  spec.page_bytes = desc.page_bytes;
  spec.expected_tokens = desc.expected_tokens;
  return ok_status();
}

Status check_implied_positions(const PageLayout& layout) {
  if (layout.tier_count < 2 || layout.tier[0].fields.position) return ok_status();
  return invalid("tier_count", "1 with QUIRE_LAYOUT_NO_POSITION", 1, layout.tier_count);
}

void to_layout(const PageLayout& layout, std::uint32_t flags, quire_layout* out) {
  out->flags = flags;
  out->layout_version = 0;
  out->tier_count = layout.tier_count;
  out->page_bytes = layout.page_bytes;
  for (std::uint32_t t = 0; t < layout.tier_count; ++t) {
    const TierLayout& in = layout.tier[t];
    quire_tier_layout& tier = out->tier[t];
    tier.tokens = in.tokens;
    tier.record_bytes = in.record_bytes;
    for (int p = 0; p < 2; ++p) {
      tier.k_plane[p] = in.k_plane[p];
      tier.v_plane[p] = in.v_plane[p];
    }
    tier.k_meta = in.k_meta;
    tier.v_meta = in.v_meta;
    tier.score = in.score;
    tier.position = in.position;
    tier.bytes = in.bytes;
    tier.waste = layout.waste(t);
  }
}

Status read_policy(const quire_policy* in, Policy& out) {
  quire_policy p;
  QUIRE_TRY(read_args(in, "policy", QUIRE_POLICY_GROWS | QUIRE_POLICY_POSITION_THRESHOLDS, p));
  out.kind = static_cast<PolicyKind>(p.kind);
  out.statistic = static_cast<Statistic>(p.statistic);
  out.significance = static_cast<Significance>(p.significance);
  out.step_rule = static_cast<StepRule>(p.step_rule);
  const bool by_position = (p.flags & QUIRE_POLICY_POSITION_THRESHOLDS) != 0;
  out.threshold_base = by_position ? ThresholdBase::kPosition : ThresholdBase::kLength;
  out.sink_tokens = p.sink_tokens == QUIRE_NONE ? 0 : (p.sink_tokens == 0 ? 1 : p.sink_tokens);
  out.recent_window =
      p.recent_window == QUIRE_NONE ? 0 : (p.recent_window == 0 ? 64 : p.recent_window);
  out.tail_queries = p.tail_queries;
  out.min_queries = p.min_queries;
  out.cadence = p.cadence == 0 ? 16 : p.cadence;
  out.pool = static_cast<PoolKind>(p.pool);
  out.pool_width = p.pool_width;
  out.budget_tokens = p.budget_tokens;
  out.alpha_high = p.alpha_high;
  out.alpha_low = p.alpha_low;
  out.budget_bytes = p.budget_bytes;
  out.byte_target = p.byte_target;
  out.grows = (p.flags & QUIRE_POLICY_GROWS) != 0;
  return check_policy(out);
}

void write_policy(const Policy& in, quire_policy* out) {
  *out = quire_policy{};
  out->struct_size = sizeof(quire_policy);
  if (in.grows) out->flags |= QUIRE_POLICY_GROWS;
  if (in.threshold_base == ThresholdBase::kPosition) out->flags |= QUIRE_POLICY_POSITION_THRESHOLDS;
  out->kind = static_cast<std::uint32_t>(in.kind);
  out->statistic = static_cast<std::uint32_t>(in.statistic);
  out->significance = static_cast<std::uint32_t>(in.significance);
  out->step_rule = static_cast<std::uint32_t>(in.step_rule);
  out->sink_tokens = in.sink_tokens == 0 ? QUIRE_NONE : in.sink_tokens;
  out->recent_window = in.recent_window == 0 ? QUIRE_NONE : in.recent_window;
  out->tail_queries = in.tail_queries;
  out->min_queries = in.min_queries;
  out->cadence = in.cadence;
  out->pool = static_cast<std::uint32_t>(in.pool);
  out->pool_width = in.pool_width;
  out->budget_tokens = in.budget_tokens;
  out->alpha_high = in.alpha_high;
  out->alpha_low = in.alpha_low;
  out->budget_bytes = in.budget_bytes;
  out->byte_target = in.byte_target;
}

}  // namespace quire
