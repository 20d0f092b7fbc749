// Oracle: quire.h reports a want of pages before anything is done, with the pages a call needs and
// those that are free for it; nothing changes but the count of shortages, and the call succeeds
// once pages are free. Needs are computed here from the layout.
#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

// One layer, one KV head, 16 tokens in a page of either tier, no sink, a window of 4.
RawSpec small_spec(std::uint32_t recipe, std::uint64_t pages) {
  RawSpec spec(recipe);
  spec.group.layers = 1;
  spec.group.kv_heads = 1;
  spec.group.q_heads = 2;
  spec.group.sink_tokens = spec.policy.sink_tokens = QUIRE_NONE;
  spec.group.layout.page_bytes = 0;
  quire_layout layout = QUIRE_LAYOUT_INIT;
  for (std::uint64_t bytes = 512; bytes < 65536; bytes += 64) {
    spec.group.layout.page_bytes = bytes;
    if (quire_layout_make(&spec.group.layout, &layout) == QUIRE_OK) break;
  }
  REQUIRE(layout.tier[0].tokens == 16);
  spec.desc.pages = pages;
  return spec;
}

struct Scene {
  RawCache cache;
  RawCalls calls;

  explicit Scene(const RawSpec& spec) : cache(spec), calls(cache, 61) {}

  template <class CallT>
  void refuse(std::int64_t needed, std::int64_t free_pages, CallT&& call) {
    const std::uint64_t before = cache.stats().shortages;
    calls.reset_outputs();
    require_refused(cache, calls, {QUIRE_OUT_OF_PAGES, "pages", "free", needed, free_pages}, call);
    CHECK(cache.stats().shortages == before + 1);
  }

  quire_status begin(const std::vector<std::int32_t>& slots) {
    const quire_step_begin_args args = calls.begin(slots);
    return quire_step_begin(cache.get(), &args);
  }
};

}  // namespace

TEST_CASE("a batch of which one sequence lacks a page is refused as a whole",
          "[cache][bad_input]") {
  Scene s(small_spec(QUIRE_RECIPE_KEEP_ALL, 4));
  // 20 tokens: 16 outside the window, so the next step opens a new page; 10 tokens: it does not.
  const std::int32_t full = s.calls.open_with(20);
  const std::int32_t part = s.calls.open_with(10);
  const std::int32_t also_full = s.calls.open_with(20);
  REQUIRE(s.cache.stats().live_pages == 3);
  const std::int32_t batch[] = {part, full, also_full};
  s.calls.need(quire_headroom_pages(
      s.cache.get(), batch, 3, 1, &s.calls.number[0], &s.calls.number[1], &s.calls.error));
  CHECK(s.calls.number[0] >= 2);
  CHECK(s.calls.number[1] == 1);
  s.refuse(2, 1, [&] { return s.begin({part, full, also_full}); });
  s.refuse(2, 1, [&] { return s.begin({also_full, full, part}); });
  s.calls.step({part, full});
  CHECK(s.cache.stats().live_pages == 4);
  s.refuse(1, 0, [&] { return s.begin({also_full}); });
  s.calls.need(quire_seq_close(s.cache.get(), part, &s.calls.error));
  s.calls.step({also_full, full});
  CHECK(s.cache.info(also_full).tokens == 21);
}

TEST_CASE("a prompt is refused when its closed form exceeds the free pages", "[cache][bad_input]") {
  Scene s(small_spec(QUIRE_RECIPE_KEEP_ALL, 5));
  const std::int32_t first = s.calls.open_with(4 + 32);  // 2 pages
  const std::int32_t next = s.calls.open_with(0);
  s.calls.need(quire_pages_for(
      s.cache.get(), &s.calls.policy, 64, &s.calls.number[0], nullptr, &s.calls.error));
  CHECK(s.calls.number[0] == 4);  // 60 tokens outside the window
  s.refuse(4, 3, [&] { return test::begin_prompt(s.cache.get(), next, 64, &s.calls.error); });
  s.calls.need(test::begin_prompt(s.cache.get(), next, 4 + 48, &s.calls.error));
  CHECK(s.cache.stats().promised_pages == 3);
  s.refuse(1, 0, [&] { return s.begin({first}); });  // all that is free is promised
  s.calls.need(quire_prefill_cancel(s.cache.get(), next, &s.calls.error));
  CHECK(s.cache.stats().promised_pages == 0);
  s.calls.step({first});
}

TEST_CASE("a foreign plan is refused when its low tier finds no page", "[cache][bad_input]") {
  Scene s(small_spec(QUIRE_RECIPE_FOREIGN, 3));
  const std::int32_t slot = s.calls.open_with(4 + 32);
  const std::int32_t other = s.calls.open_with(0);
  for (int token = 0; token < 4 + 1; ++token) s.calls.step({other});
  REQUIRE(s.cache.stats().live_pages == 3);
  s.calls.tiers[3] = 1;
  const quire_plan_apply_args args = s.calls.plan(slot, 1, 4 + 32);
  s.refuse(1, 0, [&] { return quire_plan_apply(s.cache.get(), &args); });
  s.calls.need(quire_seq_close(s.cache.get(), other, &s.calls.error));
  s.calls.need(quire_plan_apply(s.cache.get(), &args));
  CHECK(s.cache.info(slot).low_tokens == 1);
}

TEST_CASE("the page allocator takes for all rows or for none", "[cache][bad_input]") {
  std::int32_t ids[6] = {0, 1, 2, 3, 4, 5};
  std::uint64_t head = 0;
  std::uint64_t tail = 6;
  std::uint32_t counts[3] = {2, 3, 2};
  std::int32_t out[3 * 4];
  std::fill(std::begin(out), std::end(out), -7);
  quire_error error = QUIRE_ERROR_INIT;
  quire_pages_args args = QUIRE_PAGES_ARGS_INIT;
  args.ids = ids;
  args.capacity = 6;
  args.head = &head;
  args.tail = &tail;
  args.counts = counts;
  args.rows = 3;
  args.out = out;
  args.row_stride = 4;
  args.error = &error;
  CHECK(quire_pages_take(&args) == QUIRE_OUT_OF_PAGES);
  require_error(error, {QUIRE_OUT_OF_PAGES, "pages", "free", 7, 6});
  CHECK(head == 0);
  CHECK(tail == 6);
  CHECK(std::all_of(std::begin(out), std::end(out), [](std::int32_t id) { return id == -7; }));
  CHECK(counts[0] == 2);
  CHECK(counts[1] == 3);
  CHECK(counts[2] == 2);
  counts[1] = 2;
  CHECK(quire_pages_take(&args) == QUIRE_OK);
  CHECK(head == 6);
  const std::int32_t want[12] = {0, 1, -7, -7, 2, 3, -7, -7, 4, 5, -7, -7};
  CHECK(std::equal(std::begin(out), std::end(out), want));
}

}  // namespace quire::test
