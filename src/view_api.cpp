// An engine's own blocks and tables as quire pages: append and attention without a cache object.
#include <algorithm>

#include "quire/pages/records.hpp"
#include "src/args.hpp"
#include "src/backend.hpp"

namespace quire {
namespace {

struct View {
  PageLayout layout;
  PageSpace space;
  quire_view raw;
  std::uint32_t group = 1;
};

// No two heads may have the same bytes.
Status check_heads_apart(const View& view) {
  if (view.raw.kv_heads < 2) return ok_status();
  const std::int64_t stride = view.space.head_stride;
  const auto page = static_cast<std::int64_t>(view.layout.page_bytes);
  if (stride != 0 && stride < page && stride > -page) {
    return invalid("view.head_stride",
                   "0, or not below page_bytes",
                   view.layout.page_bytes,
                   static_cast<std::uint64_t>(stride));
  }
  if (stride == 0 && view.raw.table_head_stride == 0) {
    return invalid("view.table_head_stride", "not 0 where head_stride is 0: heads need own pages");
  }
  return ok_status();
}

Status check_view_strides(const View& view) {
  if (view.raw.pool == nullptr) return invalid("view.pool", "not NULL");
  if (reinterpret_cast<std::uintptr_t>(view.raw.pool) % kMetaAlign != 0) {
    return fail(StatusCode::kMisaligned, "view.pool", "memory aligned to 64 bytes", kMetaAlign, 1);
  }
  if (view.space.page_stride % kMetaAlign != 0) {
    return invalid("view.page_stride",
                   "a multiple of 64",
                   kMetaAlign,
                   static_cast<std::uint64_t>(view.space.page_stride));
  }
  if (view.space.page_stride < static_cast<std::int64_t>(view.layout.page_bytes)) {
    return invalid("view.page_stride",
                   "0, or not below page_bytes",
                   view.layout.page_bytes,
                   static_cast<std::uint64_t>(view.space.page_stride));
  }
  if (view.space.head_stride % kMetaAlign != 0) {
    return invalid("view.head_stride",
                   "a multiple of 64",
                   kMetaAlign,
                   static_cast<std::uint64_t>(view.space.head_stride));
  }
  QUIRE_TRY(check_heads_apart(view));
  if (view.raw.table == nullptr) return invalid("view.table", "not NULL");
  if (view.raw.tokens == nullptr) return invalid("view.tokens", "not NULL");
  return ok_status();
}

// Page counts of every row against its capacity; ids must not be negative.
Status check_view_rows(const View& view) {
  const quire_view& raw = view.raw;
  for (std::uint32_t s = 0; s < raw.sequences; ++s) {
    for (std::uint32_t h = 0; h < raw.kv_heads; ++h) {
      const std::uint32_t* tokens =
          raw.tokens + s * raw.tokens_sequence_stride + h * raw.tokens_head_stride;
      const std::int32_t* row =
          raw.table + s * raw.table_sequence_stride + h * raw.table_head_stride;
      std::uint64_t pages = 0;
      for (std::uint32_t t = 0; t < view.layout.tier_count; ++t) {
        const std::uint64_t mine =
            ceil_div(std::uint64_t{tokens[t]}, std::uint64_t{view.layout.tier[t].tokens});
        pages += mine;
        if (pages > raw.table_capacity) break;
        for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(mine); ++i) {
          if (row[row_slot(t, i, raw.table_capacity)] < 0)
            return invalid("view.table", "page ids of 0 or more", 0, i);
        }
      }
      if (pages > raw.table_capacity) {
        return invalid(
            "view.tokens", "tokens whose pages fit table_capacity", raw.table_capacity, pages);
      }
    }
  }
  return ok_status();
}

Status read_view(const quire_view* in, View& view) {
  QUIRE_TRY(read_args(in, "view", 0, view.raw));
  const quire_view& raw = view.raw;
  QUIRE_TRY(check_embedded(raw.layout));
  PageLayoutSpec spec;
  QUIRE_TRY(to_layout_spec(raw.layout, spec));
  const Expected<PageLayout> made = page_layout(spec);
  if (!made.ok()) return made.status();
  view.layout = made.value();
  QUIRE_TRY(check_implied_positions(view.layout));
  if (raw.kv_heads < 1) return invalid("view.kv_heads", "at least 1", 1, raw.kv_heads);
  if (raw.q_heads < raw.kv_heads || raw.q_heads % raw.kv_heads != 0 ||
      raw.q_heads / raw.kv_heads > kMaxQueryGroup) {
    return invalid("view.q_heads", "1 to 64 times kv_heads", raw.kv_heads, raw.q_heads);
  }
  if (raw.sequences < 1) return invalid("view.sequences", "at least 1", 1, raw.sequences);
  view.group = raw.q_heads / raw.kv_heads;
  view.space = {
      static_cast<std::uint8_t*>(raw.pool),
      raw.page_stride == 0 ? static_cast<std::int64_t>(view.layout.page_bytes) : raw.page_stride,
      raw.head_stride};
  QUIRE_TRY(check_view_strides(view));
  return check_view_rows(view);
}

HeadView head_view(const View& view, std::uint32_t sequence, std::uint32_t head) {
  const quire_view& raw = view.raw;
  HeadView v;
  v.tiers = view.layout.tier;
  v.tier_count = view.layout.tier_count;
  const std::uint32_t* tokens =
      raw.tokens + sequence * raw.tokens_sequence_stride + head * raw.tokens_head_stride;
  for (std::uint32_t t = 0; t < v.tier_count; ++t) v.tokens[t] = tokens[t];
  v.row.ids = raw.table + sequence * raw.table_sequence_stride + head * raw.table_head_stride;
  v.row.capacity = raw.table_capacity;
  v.space = view.space;
  v.head = HeadId{head};
  v.length = kMaxPosition;  // unknown: attention looks at every position
  const std::uint32_t dim_k = view.layout.tier[0].head_dim_k;
  const std::uint32_t dim_v = view.layout.tier[0].head_dim_v;
  v.k = {view.layout.tier[0].format.k.transform,
         raw.transform_seed,
         raw.k_offset == nullptr ? nullptr : raw.k_offset + std::uint64_t{head} * dim_k};
  v.v = {view.layout.tier[0].format.v.transform,
         raw.transform_seed,
         raw.v_offset == nullptr ? nullptr : raw.v_offset + std::uint64_t{head} * dim_v};
  return v;
}

// Every page that the tokens go to has an id.
Status check_append_pages(const View& view, const quire_view_append_args& a) {
  if (a.count == 0) return ok_status();
  const std::uint32_t per_page = view.layout.tier[a.tier].tokens;
  for (std::uint32_t s = 0; s < view.raw.sequences; ++s) {
    for (std::uint32_t h = 0; h < view.raw.kv_heads; ++h) {
      const PageRow row = head_view(view, s, h).row;
      for (std::uint32_t p = a.first_token / per_page;
           p <= (a.first_token + a.count - 1) / per_page;
           ++p) {
        if (row.page(a.tier, p).value < 0)
          return invalid("view.table", "page ids of 0 or more", 0, p);
      }
    }
  }
  return ok_status();
}

// Tokens within the table, positions within their range, and pages that are there.
Status check_append_place(const View& view, const quire_view_append_args& a) {
  const TierLayout& layout = view.layout.tier[a.tier];
  const std::uint64_t end = std::uint64_t{a.first_token} + a.count;
  const std::uint64_t room = std::min(std::uint64_t{view.raw.table_capacity} * layout.tokens,
                                      std::uint64_t{kMaxPosition} + 1);
  if (end > room)
    return fail(StatusCode::kCapacity, "count", "tokens that fit table_capacity pages", room, end);
  const std::int64_t last = std::int64_t{a.first_position} + a.count - 1;
  if (a.first_position < 0 || last > kMaxPosition) {
    return invalid("first_position",
                   "0 or more, and the last token's position up to 16777215",
                   kMaxPosition,
                   static_cast<std::uint64_t>(last));
  }
  if (!layout.fields.position && std::int64_t{a.first_position} != std::int64_t{a.first_token}) {
    return invalid("first_position",
                   "first_token where positions are not stored",
                   a.first_token,
                   static_cast<std::uint64_t>(a.first_position));
  }
  return check_append_pages(view, a);
}

Status append(const quire_view_append_args* args) {
  quire_view_append_args a;
  QUIRE_TRY(read_args(args, "args", 0, a));
  View view;
  QUIRE_TRY(read_view(a.view, view));
  if (a.tier >= view.layout.tier_count)
    return invalid("tier", "below tier_count", view.layout.tier_count, a.tier);
  const TierLayout& layout = view.layout.tier[a.tier];
  QUIRE_TRY(check_append_place(view, a));
  RowsView k;
  RowsView v;
  QUIRE_TRY(read_rows(a.k, "k", {a.count, view.raw.kv_heads, layout.head_dim_k}, k));
  QUIRE_TRY(read_rows(a.v, "v", {a.count, view.raw.kv_heads, layout.head_dim_v}, v));
  const Backend& backend = cpu_backend();
  const char* range = "finite numbers within +-65504";
  std::int64_t bad = backend.find_bad_value(
      k, view.raw.sequences, a.count, view.raw.kv_heads, layout.head_dim_k, kHalfMax);
  if (bad >= 0) return fail(StatusCode::kBadValue, "k", range, 0, static_cast<std::uint64_t>(bad));
  bad = backend.find_bad_value(
      v, view.raw.sequences, a.count, view.raw.kv_heads, layout.head_dim_v, kHalfMax);
  if (bad >= 0) return fail(StatusCode::kBadValue, "v", range, 0, static_cast<std::uint64_t>(bad));
  CodecEvents events;
  float x[kMaxHeadDim];
  float y[kMaxHeadDim];
  for (std::uint32_t s = 0; s < view.raw.sequences; ++s) {
    for (std::uint32_t h = 0; h < view.raw.kv_heads; ++h) {
      const HeadView head = head_view(view, s, h);
      for (std::uint32_t t = 0; t < a.count; ++t) {
        const std::uint32_t index = a.first_token + t;
        load_row(k, k.offset(s, t, h), layout.head_dim_k, x);
        load_row(v, v.offset(s, t, h), layout.head_dim_v, y);
        transform_stored(head.k, layout.head_dim_k, x);
        transform_stored(head.v, layout.head_dim_v, y);
        const PageId page = head.row.page(a.tier, index / layout.tokens);
        const TokenPlace place = {
            &layout, head.space.address(page, head.head), index % layout.tokens};
        write_record(place, x, y, 0.0f, a.first_position + static_cast<std::int32_t>(t), events);
      }
    }
  }
  return ok_status();
}

AttentionShape view_shape(const View& view, const quire_view_attention_args& a) {
  AttentionShape shape;
  shape.head_dim_k = view.layout.tier[0].head_dim_k;
  shape.head_dim_v = view.layout.tier[0].head_dim_v;
  for (std::uint32_t t = 0; t < view.layout.tier_count; ++t) {
    shape.k_groups =
        std::max(shape.k_groups, group_count(view.layout.tier[t].format.k, shape.head_dim_k));
  }
  shape.group = view.group;
  shape.rows = a.rows == 0 ? 1 : a.rows;
  shape.splits = std::max(a.splits, 1u);
  shape.width = a.parallel == nullptr ? 1 : a.parallel->width;
  for (std::uint32_t s = 0; s < view.raw.sequences; ++s) {
    for (std::uint32_t h = 0; h < view.raw.kv_heads; ++h) {
      const HeadView head = head_view(view, s, h);
      shape.max_segments = std::max<std::uint64_t>(shape.max_segments, head.segment_count());
      shape.max_tokens =
          std::max<std::uint64_t>(shape.max_tokens, std::uint64_t{head.tokens[0]} + head.tokens[1]);
    }
  }
  shape.max_units = std::uint64_t{view.raw.sequences} * view.raw.kv_heads;
  return shape;
}

Status read_attention(const quire_view_attention_args* args,
                      quire_view_attention_args& a,
                      View& view) {
  QUIRE_TRY(read_args(args, "args", 0, a));
  QUIRE_TRY(read_view(a.view, view));
  if (a.rows > kMaxDecodeRows) return invalid("rows", "0 to 16", kMaxDecodeRows, a.rows);
  if (a.splits > kMaxSplits) return invalid("splits", "0 to 64", kMaxSplits, a.splits);
  if (a.lse_base_2 > 1) return invalid("lse_base_2", "0 or 1", 1, a.lse_base_2);
  Parallel unused;
  return read_parallel(a.parallel, 1024, unused);
}

std::uint64_t units_bytes(const View& view) {
  Arena arena(Workspace{});
  arena.take<AttentionUnit>(std::uint64_t{view.raw.sequences} * view.raw.kv_heads);
  return arena.used();
}

// A row at a negative position sees nothing.
Status check_positions(const quire_view_attention_args& a,
                       std::uint32_t sequences,
                       std::uint32_t rows) {
  if (a.first_position == nullptr) return invalid("first_position", "not NULL");
  for (std::uint32_t s = 0; s < sequences; ++s) {
    const std::int64_t last = std::int64_t{a.first_position[s]} + rows - 1;
    if (last > kMaxPosition) {
      return invalid("first_position",
                     "the last row's position up to 16777215",
                     kMaxPosition,
                     static_cast<std::uint64_t>(last));
    }
  }
  return ok_status();
}

Status attention(const quire_view_attention_args* args) {
  quire_view_attention_args a;
  View view;
  QUIRE_TRY(read_attention(args, a, view));
  const std::uint32_t rows = a.rows == 0 ? 1 : a.rows;
  const TierLayout& high = view.layout.tier[0];
  AttentionCall call;
  QUIRE_TRY(read_rows(a.q, "q", {rows, view.raw.q_heads, high.head_dim_k}, call.q));
  QUIRE_TRY(read_rows(a.out, "out", {rows, view.raw.q_heads, high.head_dim_v}, call.out));
  QUIRE_TRY(read_rule(a.rule, high.head_dim_k, view.raw.q_heads, call.rule));
  QUIRE_TRY(read_parallel(a.parallel, 1024, call.parallel));
  QUIRE_TRY(check_positions(a, view.raw.sequences, rows));
  const std::uint64_t needed =
      units_bytes(view) + cpu_backend().attention_workspace(view_shape(view, a));
  if (a.workspace == nullptr) return invalid("workspace", "not NULL", needed, 0);
  if (reinterpret_cast<std::uintptr_t>(a.workspace) % kBufferAlign != 0) {
    return fail(
        StatusCode::kMisaligned, "workspace", "memory aligned to 128 bytes", kBufferAlign, 1);
  }
  if (a.workspace_bytes < needed) {
    return fail(StatusCode::kMemoryTooSmall,
                "workspace_bytes",
                "bytes as quire_view_workspace says",
                needed,
                a.workspace_bytes);
  }
  const std::int64_t bad = cpu_backend().find_bad_value(
      call.q, view.raw.sequences, rows, view.raw.q_heads, high.head_dim_k, kMaxQuery);
  if (bad >= 0)
    return fail(StatusCode::kBadValue,
                "q",
                "finite numbers within +-1e30",
                0,
                static_cast<std::uint64_t>(bad));
  Arena arena({static_cast<std::uint8_t*>(a.workspace), a.workspace_bytes});
  call.units = arena.take<AttentionUnit>(std::uint64_t{view.raw.sequences} * view.raw.kv_heads);
  for (std::uint32_t s = 0; s < view.raw.sequences; ++s) {
    for (std::uint32_t h = 0; h < view.raw.kv_heads; ++h) {
      AttentionUnit unit;
      unit.view = head_view(view, s, h);
      unit.sequence = s;
      unit.kv_head = h;
      unit.position = a.first_position[s];
      call.units[call.unit_count++] = unit;
    }
  }
  call.rows = rows;
  call.q_heads = view.raw.q_heads;
  call.group = view.group;
  call.lse = a.lse;
  call.lse_base_2 = a.lse_base_2 != 0;
  call.splits = a.splits;
  call.workspace = arena.rest();
  cpu_backend().attention(call);
  return ok_status();
}

}  // namespace
}  // namespace quire

extern "C" quire_status quire_view_append(const quire_view_append_args* args) {
  return quire::guarded(quire::error_of(args), [&] { return quire::append(args); });
}

extern "C" quire_status quire_view_workspace(const quire_view_attention_args* args,
                                             uint64_t* bytes) {
  return quire::guarded(quire::error_of(args), [&]() -> quire::Status {
    quire_view_attention_args a;
    quire::View view;
    QUIRE_TRY(quire::read_attention(args, a, view));
    if (bytes == nullptr) return quire::invalid("bytes", "not NULL");
    *bytes = quire::units_bytes(view) +
             quire::cpu_backend().attention_workspace(quire::view_shape(view, a));
    return quire::ok_status();
  });
}

extern "C" quire_status quire_view_attention(const quire_view_attention_args* args) {
  return quire::guarded(quire::error_of(args), [&] { return quire::attention(args); });
}
