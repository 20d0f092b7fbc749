// Oracle: quire.h, "structs begin with struct_size and flags; fields are only appended". A struct
// smaller than this version's, one with something behind it, or one with unknown flags is of
// another version: QUIRE_ABI_MISMATCH, and nothing changes. A larger one with zeros behind is fine.
#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kTokens = 12;

// How a struct is handed in: its size differs, something lies behind it, flags are set.
struct Dress {
  std::int64_t more = 0;   // bytes beyond this version's size
  std::int64_t poke = -1;  // offset behind this version's size of a byte that is not 0
  std::uint32_t flags = 0;
  std::uint32_t exact_size = 0;  // instead of `more`
};

struct Scene {
  RawCache cache;
  RawCalls calls;
  Dress dress;
  std::vector<unsigned char> room = std::vector<unsigned char>(70000);
  std::int32_t slot = -1;
  RawImage before;
  std::vector<unsigned char> outputs;
  std::size_t this_size = 0;

  explicit Scene(const Dress& d) : cache(RawSpec()), calls(cache, 91), dress(d) {
    slot = calls.open_with(kTokens);
    mark();
  }

  quire_cache* get() const { return cache.get(); }

  // State right before the call.
  void mark() {
    calls.reset_outputs();
    before = cache.image();
    outputs = calls.outputs();
  }

  void begin_step(std::uint32_t appended) {
    const quire_step_begin_args begin = calls.begin({slot});
    calls.need(quire_step_begin(get(), &begin));
    for (std::uint32_t layer = 0; layer < appended; ++layer) {
      const quire_append_args append = calls.append(layer);
      calls.need(quire_append(get(), &append));
    }
    mark();
  }

  // The struct as the dress wants it, with zeros behind.
  template <class T>
  T* put(const T& good) {
    this_size = sizeof(T);
    std::memset(room.data(), 0, room.size());
    std::memcpy(room.data(), &good, sizeof(T));
    const std::uint32_t size =
        dress.exact_size != 0
            ? dress.exact_size
            : static_cast<std::uint32_t>(static_cast<std::int64_t>(sizeof(T)) + dress.more);
    std::memcpy(room.data(), &size, sizeof(size));
    if (dress.poke >= 0) room[sizeof(T) + static_cast<std::size_t>(dress.poke)] = 1;
    std::uint32_t flags;
    std::memcpy(&flags, room.data() + 4, sizeof(flags));
    flags |= dress.flags;
    std::memcpy(room.data() + 4, &flags, sizeof(flags));
    return reinterpret_cast<T*>(room.data());
  }
};

quire_layout_desc layout_of(Scene& s) {
  quire_layout_desc desc = s.cache.spec.group.layout;
  desc.error = &s.calls.error;
  return desc;
}

quire_cache_desc desc_of(Scene& s) {
  quire_cache_desc desc = s.cache.spec.desc;
  desc.flags = 0;  // those of the dress alone
  desc.error = &s.calls.error;
  return desc;
}

quire_codec_args codec_of(Scene& s) {
  quire_codec_args args = QUIRE_CODEC_ARGS_INIT;
  args.format = {QUIRE_GRID_AFFINE, 4, 0, 0};
  args.head_dim = 32;
  args.count = 1;
  args.rows = s.calls.rows(s.calls.k);
  args.codes[0] = s.calls.plan_out.data();
  args.meta = reinterpret_cast<std::uint16_t*>(s.calls.scores.data());
  args.error = &s.calls.error;
  return args;
}

struct Call {
  const char* name;
  bool has_flags;
  bool has_error;
  quire_status (*run)(Scene&);
};

// clang-format off
const Call kCalls[] = {
    {"quire_layout_make desc", true, true, [](Scene& s) {
       quire_layout out = QUIRE_LAYOUT_INIT;
       return quire_layout_make(s.put(layout_of(s)), &out); }},
    {"quire_layout_make layout", false, true, [](Scene& s) {
       const quire_layout_desc desc = layout_of(s);
       return quire_layout_make(&desc, s.put(quire_layout QUIRE_LAYOUT_INIT)); }},
    {"quire_recipe_get policy", false, true, [](Scene& s) {
       const quire_policy policy = QUIRE_POLICY_INIT;
       return quire_recipe_get(QUIRE_RECIPE_H2O, s.put(policy), nullptr, &s.calls.error); }},
    {"quire_recipe_get group", false, true, [](Scene& s) {
       quire_policy policy = QUIRE_POLICY_INIT;
       return quire_recipe_get(QUIRE_RECIPE_H2O, &policy, s.put(s.cache.spec.group), &s.calls.error); }},
    {"quire_cache_sizes_get desc", true, true, [](Scene& s) {
       quire_cache_sizes out = QUIRE_CACHE_SIZES_INIT;
       return quire_cache_sizes_get(s.put(desc_of(s)), &out); }},
    {"quire_cache_sizes_get group", true, true, [](Scene& s) {
       quire_cache_sizes out = QUIRE_CACHE_SIZES_INIT;
       quire_cache_desc desc = desc_of(s);
       desc.groups = s.put(s.cache.spec.group);
       return quire_cache_sizes_get(&desc, &out); }},
    {"quire_cache_sizes_get sizes", false, true, [](Scene& s) {
       const quire_cache_desc desc = desc_of(s);
       return quire_cache_sizes_get(&desc, s.put(quire_cache_sizes QUIRE_CACHE_SIZES_INIT)); }},
    {"quire_seq_open args", true, true, [](Scene& s) {
       return quire_seq_open(s.get(), s.put(s.calls.open()), &s.calls.opened); }},
    {"quire_seq_open policy", true, true, [](Scene& s) {
       quire_seq_open_args args = s.calls.open();
       args.policy = s.put(s.calls.policy);
       return quire_seq_open(s.get(), &args, &s.calls.opened); }},
    {"quire_seq_fork", true, true, [](Scene& s) {
       quire_seq_fork_args args = QUIRE_SEQ_FORK_ARGS_INIT;
       args.slot = s.slot;
       args.error = &s.calls.error;
       return quire_seq_fork(s.get(), s.put(args), &s.calls.opened); }},
    {"quire_seq_freeze", true, true, [](Scene& s) {
       quire_seq_freeze_args args = QUIRE_SEQ_FREEZE_ARGS_INIT;
       args.slot = s.slot;
       args.token_ids = s.calls.positions.data();
       args.token_count = kTokens;
       args.error = &s.calls.error;
       return quire_seq_freeze(s.get(), s.put(args)); }},
    {"quire_prefix_find", true, true, [](Scene& s) {
       const quire_seq_open_args open = s.calls.open();
       quire_prefix_find_args args = QUIRE_PREFIX_FIND_ARGS_INIT;
       args.open = &open;
       args.slot = &s.calls.opened;
       args.error = &s.calls.error;
       return quire_prefix_find(s.get(), s.put(args)); }},
    {"quire_seq_truncate", true, true, [](Scene& s) {
       quire_seq_truncate_args args = QUIRE_SEQ_TRUNCATE_ARGS_INIT;
       args.slot = s.slot;
       args.error = &s.calls.error;
       return quire_seq_truncate(s.get(), s.put(args)); }},
    {"quire_seq_remove_span", true, true, [](Scene& s) {
       quire_seq_remove_span_args args = QUIRE_SEQ_REMOVE_SPAN_ARGS_INIT;
       args.slot = s.slot;
       args.first = args.end = 2;
       args.error = &s.calls.error;
       return quire_seq_remove_span(s.get(), s.put(args)); }},
    {"quire_accept", true, true, [](Scene& s) {
       static const std::uint32_t kNone = 0;
       s.calls.step_with_draft(s.slot);
       s.mark();
       quire_accept_args args = QUIRE_ACCEPT_ARGS_INIT;
       args.slots = &s.slot;
       args.batch = 1;
       args.counts = &kNone;
       args.error = &s.calls.error;
       return quire_accept(s.get(), s.put(args)); }},
    {"quire_pages_for policy", true, true, [](Scene& s) {
       return quire_pages_for(s.get(), s.put(s.calls.policy), 9, s.calls.number, nullptr, &s.calls.error); }},
    {"quire_prefill_begin", true, true, [](Scene& s) {
       quire_prefill_begin_args args = QUIRE_PREFILL_BEGIN_ARGS_INIT;
       args.slot = s.calls.open_with(0);
       args.tokens = kTokens;
       args.error = &s.calls.error;
       s.mark();
       return quire_prefill_begin(s.get(), s.put(args)); }},
    {"quire_prefill_layer", true, true, [](Scene& s) {
       const std::int32_t fresh = s.calls.open_with(0);
       s.calls.need(test::begin_prompt(s.get(), fresh, kTokens, &s.calls.error));
       s.mark();
       return quire_prefill_layer(s.get(), s.put(s.calls.prompt(fresh, 0, kTokens))); }},
    {"quire_step_begin", true, true, [](Scene& s) {
       return quire_step_begin(s.get(), s.put(s.calls.begin({s.slot}))); }},
    {"quire_append", true, true, [](Scene& s) {
       s.begin_step(0);
       return quire_append(s.get(), s.put(s.calls.append(0))); }},
    {"quire_attention", true, true, [](Scene& s) {
       s.begin_step(1);
       return quire_attention(s.get(), s.put(s.calls.attention(0))); }},
    {"quire_extend", true, true, [](Scene& s) {
       return quire_extend(s.get(), s.put(s.calls.extend(s.slot, 0, 2))); }},
    {"quire_plan_apply", true, true, [](Scene& s) {
       return quire_plan_apply(s.get(), s.put(s.calls.plan(s.slot, 2, kTokens))); }},
    {"quire_gather", true, true, [](Scene& s) {
       return quire_gather(s.get(), s.put(s.calls.gather(s.slot))); }},
    {"quire_query", true, true, [](Scene& s) {
       return quire_query(s.get(), s.put(s.calls.query(s.slot))); }},
    {"quire_explain args", true, true, [](Scene& s) {
       quire_explain_report out = QUIRE_EXPLAIN_REPORT_INIT;
       return quire_explain(s.get(), s.put(s.calls.attention(0)), &out); }},
    {"quire_explain report", false, true, [](Scene& s) {
       const quire_attention_args args = s.calls.attention(0);
       return quire_explain(s.get(), &args, s.put(quire_explain_report QUIRE_EXPLAIN_REPORT_INIT)); }},
    {"quire_stats_get", false, true, [](Scene& s) {
       return quire_stats_get(s.get(), s.put(quire_stats QUIRE_STATS_INIT), &s.calls.error); }},
    {"quire_seq_info_get", false, true, [](Scene& s) {
       return quire_seq_info_get(s.get(), s.slot, s.put(quire_seq_info QUIRE_SEQ_INFO_INIT), &s.calls.error); }},
    {"quire_encode", true, true, [](Scene& s) { return quire_encode(s.put(codec_of(s))); }},
    {"quire_decode", true, true, [](Scene& s) {
       quire_codec_args args = codec_of(s);
       args.rows = s.calls.rows(s.calls.gathered);
       return quire_decode(s.put(args)); }},
    {"quire_demote from", true, true, [](Scene& s) {
       const quire_codec_args to = codec_of(s);
       return quire_demote(s.put(codec_of(s)), &to); }},
    {"quire_demote to", true, true, [](Scene& s) {
       const quire_codec_args from = codec_of(s);
       return quire_demote(&from, s.put(codec_of(s))); }},
    {"quire_merge", true, true, [](Scene& s) {
       const quire_part part = {s.calls.rows(s.calls.q), s.calls.k.data(), 0, 0};
       quire_merge_args args = QUIRE_MERGE_ARGS_INIT;
       args.parts = &part;
       args.part_count = args.rows = args.q_heads = 1;
       args.head_dim_v = 16;
       args.out = s.calls.rows(s.calls.out);
       args.error = &s.calls.error;
       return quire_merge(s.put(args)); }},
    {"quire_pages_take", true, true, [](Scene& s) {
       std::uint64_t ends[2] = {0, 1};
       quire_pages_args args = QUIRE_PAGES_ARGS_INIT;
       std::int32_t ids[1] = {0};
       args.ids = ids;
       args.capacity = 1;
       args.head = &ends[0];
       args.tail = &ends[1];
       args.error = &s.calls.error;
       return quire_pages_take(s.put(args)); }},
};
// clang-format on

quire_status run_dressed(const Call& call, const Dress& dress, Refusal want) {
  INFO(call.name << ", " << dress.more << " more bytes, byte " << dress.poke << ", flags "
                 << dress.flags << ", size " << dress.exact_size);
  Scene s(dress);
  const quire_status status = call.run(s);
  CHECK(status == want.status);
  CHECK(s.cache.guards_intact());
  if (status == QUIRE_OK || want.status == QUIRE_OK) return status;
  CHECK(s.before.difference(s.cache.image()) == "");
  CHECK(s.outputs == s.calls.outputs());
  // A struct that is too small has no error pointer that could be trusted.
  if (call.has_error && dress.more > 0)
    want.given = static_cast<std::int64_t>(s.this_size) + dress.poke;
  if (call.has_error && dress.more >= 0) require_error(s.calls.error, want);
  return status;
}

}  // namespace

TEST_CASE("a struct smaller than this version's is of another version", "[cache][struct_size]") {
  for (const Call& call : kCalls) {
    for (const std::int64_t less : {1, 4, 8}) {
      Dress dress;
      dress.more = -less;
      run_dressed(call, dress, {QUIRE_ABI_MISMATCH, "struct_size"});
    }
    for (const std::uint32_t size : {1u, 4u, 8u}) {
      Dress dress;
      dress.more = -1;
      dress.exact_size = size;
      run_dressed(call, dress, {QUIRE_ABI_MISMATCH, "struct_size"});
    }
  }
}

TEST_CASE("a larger struct with zeros behind it is taken", "[cache][struct_size]") {
  for (const Call& call : kCalls) {
    for (const std::int64_t more : {0, 1, 8, 64, 4096 - 1024}) {
      Dress dress;
      dress.more = more;
      run_dressed(call, dress, {QUIRE_OK, ""});
    }
  }
}

TEST_CASE("a larger struct with anything behind it is of another version", "[cache][struct_size]") {
  for (const Call& call : kCalls) {
    if (std::string(call.name) == "quire_recipe_get group") continue;  // fills fields it knows
    for (const std::int64_t poke : {0, 5, 7}) {
      Dress dress;
      dress.more = 8;
      dress.poke = poke;
      run_dressed(call, dress, {QUIRE_ABI_MISMATCH, "struct_size", "behind"});
    }
  }
}

TEST_CASE("a byte behind the size that a struct names is not looked at", "[cache][struct_size]") {
  for (const Call& call : kCalls) {
    Dress dress;
    dress.more = 8;
    dress.poke = 8;
    run_dressed(call, dress, {QUIRE_OK, ""});
  }
}

// No version ever had such a struct: it is a struct that nobody initialised.
TEST_CASE("a size that no struct can have is refused without a look behind it",
          "[cache][struct_size]") {
  for (const Call& call : kCalls) {
    if (std::string(call.name) == "quire_recipe_get group") continue;  // fills fields it knows
    for (const std::uint32_t size : {1u << 20, 0x7fffffffu, 0xffffffffu}) {
      Dress dress;
      dress.more = -1;  // no error pointer is expected
      dress.exact_size = size;
      run_dressed(call, dress, {QUIRE_ABI_MISMATCH, "struct_size"});
    }
  }
}

TEST_CASE("flags that this version does not know are refused", "[cache][struct_size]") {
  for (const Call& call : kCalls) {
    if (!call.has_flags) continue;
    for (const std::uint32_t flags : {0x80000000u, 0x40000000u, 0x100u}) {
      Dress dress;
      dress.flags = flags;
      run_dressed(call, dress, {QUIRE_ABI_MISMATCH, "flags", "knows", -1, flags});
    }
  }
}

}  // namespace quire::test
