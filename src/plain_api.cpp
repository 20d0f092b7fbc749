// Functions of quire.h over caller memory that need no cache: layout, codecs, merge, allocator.
#include "quire/codec/demote.hpp"
#include "quire/codec/transform.hpp"
#include "quire/pages/compaction.hpp"
#include "src/args.hpp"
#include "src/backend.hpp"

namespace quire {
namespace {

template <class T>
Status check_aligned(const T* pointer, const char* name, const char* rule) {
  const std::uint64_t off = reinterpret_cast<std::uintptr_t>(pointer) % alignof(T);
  return off == 0 ? ok_status() : fail(StatusCode::kMisaligned, name, rule, alignof(T), off);
}

Status read_codec(const quire_codec_args* args,
                  bool needs_rows,
                  quire_codec_args& a,
                  VectorFormat& format,
                  RowsView& rows) {
  QUIRE_TRY(read_args(args, "args", 0, a));
  if (!valid_head_dim(a.head_dim))
    return invalid("head_dim", "a multiple of 16 from 16 to 256", 0, a.head_dim);
  format = to_format(a.format);
  QUIRE_TRY(check_format(format, a.head_dim));
  if (a.codes[0] == nullptr) return invalid("codes", "not NULL");
  if (plane_bytes(format, a.head_dim, 1) > 0 && a.codes[1] == nullptr)
    return invalid("codes", "plane 1 for 6 and 3 bits");
  if (meta_count(format, a.head_dim) > 0 && a.meta == nullptr)
    return invalid("meta", "not NULL for integer formats");
  if (format.is_float() && reinterpret_cast<std::uintptr_t>(a.codes[0]) % 2 != 0) {
    return fail(StatusCode::kMisaligned, "codes", "16-bit formats aligned to 2 bytes", 2, 1);
  }
  QUIRE_TRY(check_aligned(a.meta, "meta", "aligned to 2 bytes"));
  QUIRE_TRY(check_aligned(a.offset, "offset", "aligned to 4 bytes"));
  QUIRE_TRY(check_aligned(a.saturated, "saturated", "aligned to 8 bytes"));
  for (std::uint32_t d = 0; a.offset != nullptr && d < a.head_dim; ++d) {
    if (!(a.offset[d] >= -kHalfMax && a.offset[d] <= kHalfMax))
      return fail(StatusCode::kBadValue, "offset", "finite numbers within +-65504", 0, d);
  }
  if (a.count > 0x7fffffffu) return invalid("count", "up to 2^31 - 1", 0x7fffffffu, a.count);
  if (!needs_rows) return ok_status();
  return read_rows(a.rows, "rows", {static_cast<std::uint32_t>(a.count), 1, a.head_dim}, rows);
}

VectorSlot codec_slot(const quire_codec_args& a, const VectorFormat& format, std::uint64_t i) {
  return {{{a.codes[0] + i * plane_bytes(format, a.head_dim, 0),
            a.codes[1] + i * plane_bytes(format, a.head_dim, 1)}},
          a.meta == nullptr ? nullptr : a.meta + i,
          static_cast<std::int64_t>(a.count)};
}

void half_offset(const quire_codec_args& a, std::uint16_t* out) {
  for (std::uint32_t d = 0; d < a.head_dim; ++d)
    out[d] = a.offset == nullptr ? std::uint16_t{0} : float_to_half(a.offset[d]);
}

Status encode(const quire_codec_args* args) {
  quire_codec_args a;
  VectorFormat format;
  RowsView rows;
  QUIRE_TRY(read_codec(args, true, a, format, rows));
  const std::int64_t bad = cpu_backend().find_bad_value(
      rows, 1, static_cast<std::uint32_t>(a.count), 1, a.head_dim, 3.4028235e38f);
  if (bad >= 0)
    return fail(
        StatusCode::kBadValue, "rows", "finite numbers", 0, static_cast<std::uint64_t>(bad));
  std::uint16_t offset[kMaxHeadDim];
  half_offset(a, offset);
  const HeadTransform transform = {format.transform, a.transform_seed, offset};
  // Plain bf16 holds every number; all else has fp16 in it, or sums that would overflow.
  const bool bounded = format.grid != Grid::kBf16 || (format.transform & kTransformHadamard) != 0;
  CodecEvents events;
  float x[kMaxHeadDim];
  for (std::uint64_t i = 0; i < a.count; ++i) {
    load_row(rows, rows.offset(0, static_cast<std::int64_t>(i), 0), a.head_dim, x);
    if (bounded) saturate_row(a.head_dim, x, events);
    transform_stored(transform, a.head_dim, x);
    encode_vector(format, a.head_dim, x, codec_slot(a, format, i), events);
  }
  if (a.saturated != nullptr) *a.saturated += events.saturated;
  return ok_status();
}

Status decode(const quire_codec_args* args) {
  quire_codec_args a;
  VectorFormat format;
  RowsView rows;
  QUIRE_TRY(read_codec(args, true, a, format, rows));
  std::uint16_t offset[kMaxHeadDim];
  half_offset(a, offset);
  const HeadTransform transform = {format.transform, a.transform_seed, offset};
  float x[kMaxHeadDim];
  for (std::uint64_t i = 0; i < a.count; ++i) {
    decode_vector(format, a.head_dim, as_const(codec_slot(a, format, i)), x);
    transform_back(transform, a.head_dim, x);
    const std::int64_t at = rows.offset(0, static_cast<std::int64_t>(i), 0);
    for (std::uint32_t d = 0; d < a.head_dim; ++d)
      store_from_float(a.rows.data, rows.dtype, at + d, x[d]);
  }
  return ok_status();
}

Status demote(const quire_codec_args* from_args, const quire_codec_args* to_args) {
  quire_codec_args from;
  quire_codec_args to;
  VectorFormat from_format;
  VectorFormat to_format_;
  RowsView unused;
  QUIRE_TRY(read_codec(from_args, false, from, from_format, unused));
  QUIRE_TRY(read_args(to_args, "to", 0, to));
  to.struct_size = sizeof(to);  // read already, and this copy ends there
  to.head_dim = from.head_dim;
  to.count = from.count;
  QUIRE_TRY(read_codec(&to, false, to, to_format_, unused));
  if (from_format.transform != to_format_.transform) {
    return invalid(
        "transform", "the same on both sides", from_format.transform, to_format_.transform);
  }
  CodecEvents events;
  for (std::uint64_t i = 0; i < from.count; ++i) {
    demote_vector(from_format,
                  to_format_,
                  from.head_dim,
                  as_const(codec_slot(from, from_format, i)),
                  codec_slot(to, to_format_, i),
                  events);
  }
  if (to.saturated != nullptr) *to.saturated += events.saturated;
  return ok_status();
}

Status merge(const quire_merge_args* args) {
  quire_merge_args a;
  QUIRE_TRY(read_args(args, "args", 0, a));
  if (a.part_count < 1 || a.part_count > kMaxSplits)
    return invalid("part_count", "1 to 64", kMaxSplits, a.part_count);
  if (a.parts == nullptr) return invalid("parts", "not NULL");
  if (a.rows < 1) return invalid("rows", "at least 1", 1, a.rows);
  if (a.q_heads < 1) return invalid("q_heads", "at least 1", 1, a.q_heads);
  if (a.head_dim_v < 1 || a.head_dim_v > kMaxHeadDim)
    return invalid("head_dim_v", "1 to 256", kMaxHeadDim, a.head_dim_v);
  if (a.lse_base_2 > 1) return invalid("lse_base_2", "0 or 1", 1, a.lse_base_2);
  const RowsShape shape = {a.rows, a.q_heads, a.head_dim_v};
  constexpr float kAbove = __builtin_inff();
  MergePart parts[kMaxSplits];
  for (std::uint32_t p = 0; p < a.part_count; ++p) {
    QUIRE_TRY(read_rows(a.parts[p].out, "parts.out", shape, parts[p].out));
    if (a.parts[p].lse == nullptr) return invalid("parts.lse", "not NULL", 0, p);
    if (a.parts[p].lse_base_2 > 1)
      return invalid("parts.lse_base_2", "0 or 1", 1, a.parts[p].lse_base_2);
    for (std::uint64_t i = 0; i < std::uint64_t{a.rows} * a.q_heads; ++i) {
      const float lse = a.parts[p].lse[i];
      if (!(lse < kAbove))
        return fail(StatusCode::kBadValue, "parts.lse", "-inf or finite numbers", 0, i);
    }
    parts[p].lse = a.parts[p].lse;
    parts[p].lse_base_2 = a.parts[p].lse_base_2 != 0;
  }
  MergeCall call;
  call.parts = parts;
  call.part_count = a.part_count;
  call.rows = a.rows;
  call.q_heads = a.q_heads;
  call.head_dim_v = a.head_dim_v;
  call.sink_logits = a.sink_logits;
  call.lse = a.lse;
  call.lse_base_2 = a.lse_base_2 != 0;
  QUIRE_TRY(read_rows(a.out, "out", shape, call.out));
  cpu_backend().merge(call);
  return ok_status();
}

Status read_pages(const quire_pages_args* args, quire_pages_args& a, FreeList& free) {
  QUIRE_TRY(read_args(args, "args", 0, a));
  if (a.ids == nullptr) return invalid("ids", "not NULL");
  if (a.head == nullptr || a.tail == nullptr)
    return invalid(a.head == nullptr ? "head" : "tail", "not NULL");
  if (a.capacity < 1 || a.capacity > 0x7fffffffu)
    return invalid("capacity", "1 to 2^31 - 1", 1, a.capacity);
  if (*a.tail < *a.head || *a.tail - *a.head > a.capacity) {
    return invalid("tail", "head to head + capacity", *a.head + a.capacity, *a.tail);
  }
  if (a.out == nullptr && a.rows > 0) return invalid("out", "not NULL");
  free = {a.ids, a.capacity, *a.head, *a.tail};
  return ok_status();
}

Status pages_take(const quire_pages_args* args) {
  quire_pages_args a;
  FreeList free;
  QUIRE_TRY(read_pages(args, a, free));
  if (a.counts == nullptr && a.rows > 0) return invalid("counts", "not NULL");
  for (std::uint64_t i = 0; i < a.rows; ++i) {
    if (a.counts[i] > static_cast<std::uint64_t>(a.row_stride < 0 ? 0 : a.row_stride)) {
      return invalid(
          "counts", "not above row_stride", static_cast<std::uint64_t>(a.row_stride), a.counts[i]);
    }
  }
  QUIRE_TRY(take_pages(free, a.counts, a.rows, a.out, a.row_stride));
  *a.head = free.head;
  return ok_status();
}

Status pages_return(const quire_pages_args* args) {
  quire_pages_args a;
  FreeList free;
  QUIRE_TRY(read_pages(args, a, free));
  if (a.rows > free.live_count())
    return invalid("rows", "not more ids than were taken", free.live_count(), a.rows);
  for (std::uint64_t i = 0; i < a.rows; ++i) {
    const std::int32_t id = a.out[static_cast<std::int64_t>(i) * a.row_stride];
    if (id < 0 || static_cast<std::uint64_t>(id) >= a.capacity) {
      return invalid("out", "ids below capacity", a.capacity, static_cast<std::uint64_t>(id));
    }
  }
  for (std::uint64_t i = 0; i < a.rows; ++i)
    free.put(a.out[static_cast<std::int64_t>(i) * a.row_stride]);
  *a.tail = free.tail;
  return ok_status();
}

}  // namespace
}  // namespace quire

extern "C" const char* quire_status_text(quire_status status) {
  static constexpr const char* kText[] = {"ok",
                                          "invalid argument",
                                          "unsupported",
                                          "bad state",
                                          "out of pages",
                                          "capacity",
                                          "memory too small",
                                          "misaligned",
                                          "abi mismatch",
                                          "bad value",
                                          "not reversible",
                                          "internal"};
  const bool known = status >= 0 && status <= QUIRE_INTERNAL;
  return known ? kText[status] : "unknown status";
}

extern "C" uint32_t quire_version(uint32_t* abi) {
  if (abi != nullptr) *abi = QUIRE_ABI_VERSION;
  return QUIRE_VERSION_MAJOR * 10000 + QUIRE_VERSION_MINOR * 100 + QUIRE_VERSION_PATCH;
}

extern "C" quire_status quire_layout_make(const quire_layout_desc* desc, quire_layout* layout) {
  return quire::guarded(quire::error_of(desc), [&]() -> quire::Status {
    quire_layout_desc d;
    QUIRE_TRY(quire::read_args(desc, "desc", quire::kLayoutFlags, d));
    quire_layout out;
    QUIRE_TRY(quire::read_args<quire_layout>(layout, "layout", 0xffffffffu, out));
    quire::PageLayoutSpec spec;
    QUIRE_TRY(quire::to_layout_spec(d, spec));
    const quire::Expected<quire::PageLayout> made = quire::page_layout(spec);
    if (!made.ok()) return made.status();
    quire::to_layout(made.value(), d.flags, &out);
    *layout = out;
    return quire::ok_status();
  });
}

extern "C" quire_status quire_encode(const quire_codec_args* args) {
  return quire::guarded(quire::error_of(args), [&] { return quire::encode(args); });
}

extern "C" quire_status quire_decode(const quire_codec_args* args) {
  return quire::guarded(quire::error_of(args), [&] { return quire::decode(args); });
}

extern "C" quire_status quire_demote(const quire_codec_args* from, const quire_codec_args* to) {
  return quire::guarded(quire::error_of(from), [&] { return quire::demote(from, to); });
}

extern "C" quire_status quire_merge(const quire_merge_args* args) {
  return quire::guarded(quire::error_of(args), [&] { return quire::merge(args); });
}

extern "C" quire_status quire_pages_take(const quire_pages_args* args) {
  return quire::guarded(quire::error_of(args), [&] { return quire::pages_take(args); });
}

extern "C" quire_status quire_pages_return(const quire_pages_args* args) {
  return quire::guarded(quire::error_of(args), [&] { return quire::pages_return(args); });
}
