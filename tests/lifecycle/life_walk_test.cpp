// Random walks over the life of sequences: open, prompt, steps with drafts and without, accept,
// truncation, spans, forks, frames in and out, foreign plans, shortages, in a small pool. Oracle
// after every operation: the slow model of support/life_walk.hpp, and a walk over all pages.
#include "support/life_calls.hpp"

namespace quire::test {
namespace {

class Walk : public LifeCalls {
 public:
  Walk(std::uint32_t recipe, std::uint64_t pages, std::uint64_t seed)
      : LifeCalls(recipe, pages, seed) {}

  void run(std::uint32_t operations) {
    INFO(rng_.describe());
    for (std::uint32_t i = 0; i < operations; ++i) {
      operate();
      const std::string pool = check_pool(cache_.state());
      if (!pool.empty()) FAIL(pool << " after operation " << i << " (" << last_ << ")");
      if (!problem_.empty()) FAIL(problem_ << " after operation " << i << " (" << last_ << ")");
    }
    while (!open_.empty()) close(open_.begin()->first);
    const quire_stats stats = cache_.rig.cache.stats();
    REQUIRE(stats.live_pages == 0);
    REQUIRE(stats.promised_pages == 0);
    REQUIRE(stats.record_bytes == 0);
    REQUIRE(stats.sequences == 0);
  }

 private:
  void operate() {
    const std::uint32_t draw = rng_.below(100);
    if (draw < 6 || open_.empty()) return said("open", open());
    const std::int32_t slot = any();
    const bool waits = !open_.at(slot).drafts.empty();
    if (draw < 9) return said("close", close(slot));
    if (open_.at(slot).frozen) return said("fork", draw < 60 ? fork_one(slot) : swap_out(slot));
    if (waits) return said("accept", accept(slot));
    if (draw < 13) return said("truncate", truncate(slot));
    if (draw < 16) return said("span", remove_span(slot));
    if (draw < 20) return said("fork", fork_one(slot));
    if (draw < 23) return said("export", swap_out(slot));
    if (draw < 27) return said("import", swap_in());
    if (draw < 30) return said("plan", apply_plan(slot));
    if (draw < 33) return said("prompt", later_prompt(slot));
    if (draw < 37) return said("freeze", freeze(slot));
    said("step", step());
  }

  // Notes what was done; touched sequences are compared.
  void said(const char* name, const std::vector<std::int32_t>& touched) {
    last_ = name;
    for (const std::int32_t slot : touched) {
      const auto found = open_.find(slot);
      if (found == open_.end()) continue;
      const std::string wrong = cache_.compare(slot, found->second, rng_.below(LifeCache::kHeads));
      if (!wrong.empty()) problem_ = "slot " + std::to_string(slot) + ": " + wrong;
    }
  }

  std::vector<std::int32_t> accept(std::int32_t slot);
  LifeBatch random_batch();
  std::vector<std::int32_t> step();
  void finish(const LifeBatch& batch);
  void advance(std::int32_t slot,
               LifeSequence& s,
               const std::vector<LifeRow>& row,
               float factor,
               bool again);

  std::string problem_;
  const char* last_ = "";
};

// A token more in every head; `again`: the byte controller ran.
void Walk::advance(
    std::int32_t slot, LifeSequence& s, const std::vector<LifeRow>& row, float factor, bool again) {
  for (std::uint32_t h = 0; h < LifeCache::kHeads; ++h) {
    const HeadView view = cache_.view(slot, h);
    const LifeMoment now = cache_.moment(slot, h, view, s.tokens, factor);
    if (again) s.heads[h].classify_all(now);
    s.heads[h].advance(now, s.tokens, row[h]);
  }
  ++s.tokens;
}

// A random way down the tree of drafts.
std::vector<std::int32_t> Walk::accept(std::int32_t slot) {
  LifeSequence& s = open_.at(slot);
  std::vector<std::uint32_t> path;
  std::uint32_t at = 0;
  for (std::uint32_t r = 1; r <= s.drafts.size(); ++r) {
    const bool child = s.sees[r] == (s.sees[at] | (1u << r));
    if (!child || rng_.below(3) == 0) continue;
    path.push_back(r);
    at = r;
  }
  cache_.state().refresh_shared(slot);
  LifeSequence next = s;
  for (const std::uint32_t r : path)
    advance(slot, next, s.drafts[r - 1], cache_.slot_of(slot).factor, false);
  REQUIRE(accept_rows(cache_.rig, slot, path).ok());
  next.unscored += static_cast<std::uint32_t>(path.size());
  next.drafts.clear();
  s = next;
  tally.accepted += static_cast<std::uint32_t>(path.size());
  return {slot};
}

LifeBatch Walk::random_batch() {
  LifeBatch b;
  b.width = rng_.below(3) == 0 ? 2 + rng_.below(3) : 1;
  for (const auto& [slot, s] : open_) {
    const bool fits = s.tokens + static_cast<std::int32_t>(b.width) <=
                      static_cast<std::int32_t>(LifeCache::kTokens);
    if (!s.drafts.empty() || s.frozen || !fits || rng_.below(3) == 0) continue;
    b.slots.push_back(slot);
  }
  if (b.slots.empty()) return b;
  while (b.slots.size() < LifeCache::kSequences && rng_.below(3) == 0) b.slots.push_back(-1);
  for (std::size_t i = b.slots.size(); i > 1; --i)
    std::swap(b.slots[i - 1], b.slots[rng_.below(static_cast<std::uint32_t>(i))]);
  for (const std::int32_t slot : b.slots) {
    b.counts.push_back(1 + rng_.below(b.width));
    b.rows.push_back(cache_.random_rows(b.counts.back()));
    std::vector<std::uint32_t>& sees = b.rows.back().sees;
    for (std::uint32_t r = 1; r < sees.size(); ++r) sees[r] = sees[rng_.below(r)] | (1u << r);
    for (std::uint32_t r = 0; r < b.width; ++r) b.masks.push_back(r < sees.size() ? sees[r] : 0);
    (void)slot;
  }
  return b;
}

std::vector<std::int32_t> Walk::step() {
  LifeBatch b = random_batch();
  if (b.slots.empty()) return close(any());
  b.admitted.assign(b.slots.size(), 7);
  quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
  args.slots = b.slots.data();
  args.batch = static_cast<std::uint32_t>(b.slots.size());
  args.rows = b.width;
  args.row_counts = b.counts.data();
  args.draft_mask = b.masks.data();
  args.on_shortage = rng_.below(2);
  args.admitted = b.admitted.data();
  if (short_of_pages(api().step_begin(args))) return b.slots;
  for (std::size_t i = 0; i < b.slots.size(); ++i) {
    if (b.admitted[i] == 0) continue;
    const StepSlot& begun = cache_.state().step.slots[i];
    advance(b.slots[i], open_.at(b.slots[i]), b.rows[i].kv[0], begun.factor, begun.cadence != 0);
  }
  finish(b);
  return b.slots;
}

void Walk::finish(const LifeBatch& b) {
  const std::vector<float> k = b.keys();
  const std::vector<float> v = b.values();
  const std::vector<float> q = b.queries();
  cache_.rig.append(0, k.data(), v.data());
  std::vector<float> out(q.size());
  quire_attention_args attention = QUIRE_ATTENTION_ARGS_INIT;
  attention.q = rows_of(q.data());
  attention.out = rows_of(out.data());
  attention.splits = rng_.below(4);
  REQUIRE(api().attention(attention).ok());
  for (std::size_t i = 0; i < b.slots.size(); ++i) {
    if (b.admitted[i] == 0) continue;
    LifeSequence& s = open_.at(b.slots[i]);
    const LifeLook look = {b.slots[i],
                           rng_.below(LifeCache::kHeads),
                           rng_.below(static_cast<std::uint32_t>(b.rows[i].kv.size()))};
    problem_ +=
        cache_.check_output(look, s, b.rows[i], out.data() + i * b.width * LifeBatch::kQuerySize);
    problem_ += cache_.check_scores(look, s, b.rows[i]);
  }
  REQUIRE(api().step_end().ok());
  for (std::size_t i = 0; i < b.slots.size(); ++i) {
    if (b.admitted[i] == 0) continue;
    LifeSequence& s = open_.at(b.slots[i]);
    cache_.take_scores(b.slots[i], s);
    s.unscored = 0;
    s.sees = b.rows[i].sees;
    s.drafts.assign(b.rows[i].kv.begin() + 1, b.rows[i].kv.end());
    tally.drafts += static_cast<std::uint32_t>(s.drafts.size());
  }
  ++tally.steps;
}

// A sixth of the operations each, so that all together are more than 200,000.
constexpr std::uint32_t kOperations = 34000;

void walk(std::uint32_t recipe, std::uint64_t pages, std::uint64_t seed) {
  INFO("recipe " << recipe);
  Walk one(recipe, pages, seed);
  one.run(kOperations);
  const LifeTally& t = one.tally;
  for (const std::uint32_t count : {t.steps,
                                    t.drafts,
                                    t.accepted,
                                    t.truncated,
                                    t.forks,
                                    t.frames,
                                    t.shortages,
                                    t.closed,
                                    t.prompts})
    REQUIRE(count > kOperations / 400);
  REQUIRE(t.frozen > 10);
  if (recipe != QUIRE_RECIPE_QUIRE_UNIFORM) {
    REQUIRE(t.spans > kOperations / 400);
    REQUIRE(t.plans > kOperations / 400);
  }
}

TEST_CASE("the life of sequences is that of a slow model", "[lifecycle][walk]") {
  SECTION("keep_all") { walk(QUIRE_RECIPE_KEEP_ALL, 16, 9901); }
  SECTION("diffkv_upstream") { walk(QUIRE_RECIPE_DIFFKV_UPSTREAM, 20, 9902); }
  SECTION("diffkv_paper") { walk(QUIRE_RECIPE_DIFFKV_PAPER, 20, 9903); }
  SECTION("h2o") { walk(QUIRE_RECIPE_H2O, 12, 9904); }
  SECTION("quire_uniform") { walk(QUIRE_RECIPE_QUIRE_UNIFORM, 16, 9905); }
  SECTION("quire_budget") { walk(QUIRE_RECIPE_QUIRE_BUDGET, 18, 9906); }
}

}  // namespace
}  // namespace quire::test
