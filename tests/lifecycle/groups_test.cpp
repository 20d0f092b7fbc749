// Several layer groups in one cache. Oracle: a cache of its own for every group, driven by the same
// stream; bit for bit.
#include "support/lifecycle.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 120;
constexpr std::uint32_t kLength = 200;

// Three kinds of layers: wide ones under a policy with scores, narrow ones of another format, and
// ones with a sliding window.
struct GroupSet {
  GroupSet() {
    group[0] = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 3).group;
    group[0].layers = 2;
    group[1] = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 3).group;
    group[1].layers = 1;
    group[1].kv_heads = 3;
    group[1].q_heads = 3;
    group[1].layout.head_dim_k = 48;
    group[1].layout.head_dim_v = 16;
    group[1].layout.tier[0].v = {QUIRE_GRID_AFFINE, 8, 0, 0};
    group[2] = group[0];
    group[2].layers = 3;
    group[2].sliding_window = 40;
    for (quire_group_desc& g : group) {
      g.pages = 400;
      g.max_draft = 3;
    }
    policy = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 3).policy;
    policy.tail_queries = 32;
  }

  static quire_cache_desc desc(const quire_group_desc* groups, std::uint32_t count) {
    quire_cache_desc d = QUIRE_CACHE_DESC_INIT;
    d.flags = QUIRE_CACHE_SHARING;
    d.max_sequences = 3;
    d.max_tokens = 300;
    d.group_count = count;
    d.groups = groups;
    return d;
  }

  quire_group_desc group[3];
  quire_policy policy = QUIRE_POLICY_INIT;
};

// Rows of a layer for positions [first, first + count), from a seed.
struct LayerRows {
  LayerRows(const quire_group_desc& g,
            std::uint32_t layer,
            std::uint32_t first,
            std::uint32_t count) {
    for (std::uint32_t t = first; t < first + count; ++t) {
      Rng rng(1000003ull * layer + t);
      const float loud = rng.below(8) == 0 ? 3.0f : 1.0f;
      add(k, rng, g.kv_heads * g.layout.head_dim_k, loud);
      add(v, rng, g.kv_heads * g.layout.head_dim_v, 1.0f);
      add(q, rng, g.q_heads * g.layout.head_dim_k, 1.5f);
    }
  }
  static void add(std::vector<float>& to, Rng& rng, std::size_t n, float scale) {
    const std::vector<float> more = rng.normals(n, scale);
    to.insert(to.end(), more.begin(), more.end());
  }
  std::vector<float> k, v, q;
};

// A cache with one sequence, and the layers by the numbers that its calls use.
struct Driver {
  struct Layer {
    const quire_group_desc* group;
    std::uint32_t number;  // in calls
    std::uint32_t seed;    // of its rows
  };

  Cache cache;
  std::vector<Layer> layers;  // in the order of calls
  std::int32_t slot = -1;

  void prompt(std::uint32_t tokens) const {
    REQUIRE(cache.prefill_begin(slot, tokens).ok());
    for (const Layer& layer : layers) {
      const LayerRows rows(*layer.group, layer.seed, 0, tokens);
      quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
      args.slot = slot;
      args.layer = layer.number;
      args.k = rows_of(rows.k.data());
      args.v = rows_of(rows.v.data());
      args.q = rows_of(rows.q.data());
      args.q_rows = tokens;
      const Result done = cache.prefill_layer(args);
      INFO(done.text());
      REQUIRE(done.ok());
    }
    REQUIRE(cache.prefill_end(slot).ok());
  }

  // Outputs of all layers by their seed.
  std::map<std::uint32_t, std::vector<float>> step(std::uint32_t token,
                                                   std::uint32_t rows = 1) const {
    quire_step_begin_args begin = QUIRE_STEP_BEGIN_ARGS_INIT;
    begin.slots = &slot;
    begin.batch = 1;
    begin.rows = rows;
    REQUIRE(cache.step_begin(begin).ok());
    std::map<std::uint32_t, std::vector<float>> all;
    for (const Layer& layer : layers) {
      const LayerRows data(*layer.group, layer.seed, token, rows);
      REQUIRE(cache.append(layer.number, rows_of(data.k.data()), rows_of(data.v.data())).ok());
      std::vector<float>& out = all[layer.seed];
      out.resize(std::size_t{rows} * layer.group->q_heads * layer.group->layout.head_dim_v);
      quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
      args.layer = layer.number;
      args.q = rows_of(data.q.data());
      args.out = rows_of(out.data());
      args.splits = 1;
      REQUIRE(cache.attention(args).ok());
    }
    REQUIRE(cache.step_end().ok());
    return all;
  }
};

// One cache of three groups, layers interleaved as a hybrid model has them, and three caches.
struct Scene {
  Scene() {
    const std::uint32_t places[6] = {2, 0, 2, 1, 2, 0};  // group of layer i
    std::vector<std::uint32_t> ids[3];
    for (std::uint32_t i = 0; i < 6; ++i) ids[places[i]].push_back(i);
    for (std::uint32_t g = 0; g < 3; ++g) set.group[g].layer_ids = ids[g].data();
    REQUIRE(Cache::create(GroupSet::desc(set.group, 3), &all.cache).ok());
    for (std::uint32_t i = 0; i < 6; ++i) all.layers.push_back({&set.group[places[i]], i, i});
    for (std::uint32_t g = 0; g < 3; ++g) {
      set.group[g].layer_ids = nullptr;
      REQUIRE(Cache::create(GroupSet::desc(set.group + g, 1), &one[g].cache).ok());
      for (std::uint32_t i = 0; i < ids[g].size(); ++i)
        one[g].layers.push_back({&set.group[g], i, ids[g][i]});
      REQUIRE(one[g].cache.open(set.policy, &one[g].slot).ok());
    }
    REQUIRE(all.cache.open(set.policy, &all.slot).ok());
  }

  void prompt() {
    all.prompt(kPrompt);
    for (const Driver& d : one) d.prompt(kPrompt);
    require_sums();
  }

  void step(std::uint32_t token, std::uint32_t rows = 1) {
    const auto got = all.step(token, rows);
    for (const Driver& d : one) {
      for (const auto& [seed, out] : d.step(token, rows)) {
        INFO("token " << token << " layer " << seed);
        REQUIRE((got.at(seed) == out));
      }
    }
  }

  // Bytes and counts are sums over the groups.
  void require_sums() const {
    const quire_stats stats = all.cache.stats();
    const quire_seq_info info = all.cache.info(all.slot);
    std::uint64_t live = 0, records = 0, total = 0, fp16 = 0, high = 0, tables = 0;
    for (std::uint32_t g = 0; g < 3; ++g) {
      REQUIRE(check_pool(all.cache.get()->at(g)) == "");
      const quire_stats s = one[g].cache.stats();
      const quire_seq_info i = one[g].cache.info(one[g].slot);
      live += s.live_pages;
      records += s.record_bytes;
      tables += s.table_bytes;
      total += i.total_bytes;
      fp16 += i.fp16_bytes;
      high += i.high_tokens;
    }
    REQUIRE(stats.live_pages == live);
    REQUIRE(stats.record_bytes == records);
    REQUIRE(stats.table_bytes == tables);
    REQUIRE(info.total_bytes == total);
    REQUIRE(info.fp16_bytes == fp16);
    REQUIRE(info.high_tokens == high);
    REQUIRE(stats.sequences == 1);
  }

  GroupSet set;
  Driver all;
  Driver one[3];
};

TEST_CASE("a cache of layer groups is a cache per group", "[lifecycle][groups]") {
  Scene s;
  s.prompt();
  std::uint32_t token = kPrompt;
  for (; token < kLength; ++token) {
    s.step(token);
    s.require_sums();
  }
  for (std::uint32_t round = 0; round < 10; ++round) {
    s.step(token, 4);
    const std::uint32_t accepted = round % 4;
    REQUIRE(s.all.cache.accept(s.all.slot, accepted).ok());
    for (const Driver& d : s.one) REQUIRE(d.cache.accept(d.slot, accepted).ok());
    token += 1 + accepted;
    s.require_sums();
  }
  quire_seq_remove_span_args span = QUIRE_SEQ_REMOVE_SPAN_ARGS_INIT;
  span.first = 60;
  span.end = 90;
  for (const Driver* d : {&s.all, s.one, s.one + 1, s.one + 2}) {
    span.slot = d->slot;
    REQUIRE(d->cache.remove_span(span).ok());
    REQUIRE(d->cache.truncate(d->slot, 190, nullptr).ok());
  }
  s.require_sums();
  for (token = 190; token < 210; ++token) s.step(token);
  s.require_sums();
  REQUIRE(s.all.cache.close(s.all.slot).ok());
  REQUIRE(s.all.cache.stats().live_pages == 0);
  REQUIRE(s.all.cache.stats().record_bytes == 0);
}

TEST_CASE("forks and frames take all layer groups", "[lifecycle][groups]") {
  Scene s;
  s.prompt();
  std::int32_t child = -1;
  REQUIRE(s.all.cache.fork(s.all.slot, &child).ok());
  std::uint64_t bytes = 0;
  REQUIRE(s.all.cache.export_bytes(child, &bytes).ok());
  std::vector<std::uint8_t> frame(bytes);
  REQUIRE(s.all.cache.export_frame(child, frame.data(), bytes).ok());
  REQUIRE(s.all.cache.close(s.all.slot).ok());
  REQUIRE(s.all.cache.close(child).ok());
  REQUIRE(s.all.cache.stats().live_pages == 0);
  for (const std::size_t cut : {std::size_t{0}, std::size_t{100}, bytes / 2, bytes - 1}) {
    std::int32_t none = -7;
    REQUIRE(s.all.cache.import_frame(frame.data(), cut, &none).status() == QUIRE_BAD_VALUE);
    REQUIRE(none == -7);
  }
  REQUIRE(s.one[0].cache.import_frame(frame.data(), bytes, &child).status() != QUIRE_OK);
  REQUIRE(s.all.cache.import_frame(frame.data(), bytes, &s.all.slot).ok());
  s.require_sums();
  for (std::uint32_t token = kPrompt; token < kPrompt + 40; ++token) s.step(token);
  s.require_sums();
}

// Tokens that no query sees any more are gone, and their pages with them.
TEST_CASE("a group with a sliding window keeps what its mask lets through", "[lifecycle][groups]") {
  Scene s;
  s.prompt();
  const Driver& d = s.one[2];
  std::uint64_t most = 0;
  for (std::uint32_t token = kPrompt; token < kLength; ++token) {
    d.step(token);
    const quire_seq_info info = d.cache.info(d.slot);
    REQUIRE(info.ring_tokens + info.high_tokens + info.low_tokens == 40 * 3 * 2);
    const HeadView view = d.cache.get()->view(d.slot, 1, 1, static_cast<std::int32_t>(token + 1));
    for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
      for (std::uint32_t t = 0; t < view.segment(i).count; ++t)
        REQUIRE(view.segment(i).position(t) + 40 > static_cast<std::int32_t>(token));
    }
    most = std::max(most, info.live_pages);
  }
  const std::uint32_t per_page = d.cache.get()->group.layout.tier[0].tokens;
  REQUIRE(most <= 6 * (24 / per_page + 2));  // 40 less a ring of 16, per head
}

TEST_CASE("a shortage in any layer group stops the whole call", "[lifecycle][groups]") {
  GroupSet set;
  set.group[1].pages = 12;
  Cache cache;
  REQUIRE(Cache::create(GroupSet::desc(set.group, 3), &cache).ok());
  std::int32_t slot = -1;
  REQUIRE(cache.open(set.policy, &slot).ok());
  std::uint64_t needed = 0, available = 0;
  REQUIRE(quire_pages_for(cache.get(), &set.policy, 200, &needed, &available, nullptr) == QUIRE_OK);
  REQUIRE(available == 12);
  const Result refused = cache.prefill_begin(slot, 200);
  REQUIRE(refused.needed() == needed);
  REQUIRE(refused.status() == QUIRE_OUT_OF_PAGES);
  REQUIRE(refused.given() == 12);
  REQUIRE(cache.stats().promised_pages == 0);
  for (std::uint32_t g = 0; g < 3; ++g) REQUIRE(check_pool(cache.get()->at(g)) == "");
  REQUIRE(cache.info(slot).state == QUIRE_SEQ_OPEN);
}

TEST_CASE("a step has as many rows as every layer group has room for", "[lifecycle][groups]") {
  GroupSet set;
  set.group[2].max_draft = 1;
  Cache cache;
  REQUIRE(Cache::create(GroupSet::desc(set.group, 3), &cache).ok());
  std::int32_t slot = -1;
  REQUIRE(cache.open(set.policy, &slot).ok());
  quire_step_begin_args begin = QUIRE_STEP_BEGIN_ARGS_INIT;
  begin.slots = &slot;
  begin.batch = 1;
  begin.rows = 3;
  const Result refused = cache.step_begin(begin);
  REQUIRE(refused.status() == QUIRE_INVALID_ARGUMENT);
  REQUIRE(refused.needed() == 2);
  begin.rows = 2;
  REQUIRE(cache.step_begin(begin).ok());
  REQUIRE(cache.step_cancel().ok());
}

TEST_CASE("layer ids name every layer once", "[lifecycle][groups]") {
  GroupSet set;
  const std::uint32_t good[3][3] = {{5, 0}, {1}, {2, 3, 4}};
  const std::uint32_t twice[2] = {5, 1};
  const std::uint32_t beyond[2] = {6, 0};
  Cache cache;
  for (std::uint32_t g = 0; g < 3; ++g) set.group[g].layer_ids = good[g];
  REQUIRE(Cache::create(GroupSet::desc(set.group, 3), &cache).ok());
  for (const std::uint32_t* ids : {twice, beyond}) {
    set.group[0].layer_ids = ids;
    const Result refused = Cache::create(GroupSet::desc(set.group, 3), &cache);
    REQUIRE(refused.status() == QUIRE_INVALID_ARGUMENT);
    REQUIRE(std::string(refused.field()) == "layer_ids");
  }
}

TEST_CASE("what is counted per sequence has to be given group by group", "[lifecycle][groups]") {
  Scene s;
  quire_policy policy = fork_spec(QUIRE_RECIPE_QUIRE_BUDGET, 1).policy;
  policy.byte_target = 0.0;
  policy.budget_bytes = 1 << 20;
  std::int32_t slot = -1;
  const Result refused = s.all.cache.open(policy, &slot);
  REQUIRE(refused.status() == QUIRE_UNSUPPORTED);
  REQUIRE(std::string(refused.field()) == "policy.budget_bytes");
  const quire_policy* own[3] = {&policy, nullptr, nullptr};
  quire_seq_open_args args = QUIRE_SEQ_OPEN_ARGS_INIT;
  args.policy = &s.set.policy;
  args.group_policies = own;
  REQUIRE(s.all.cache.open(args, &slot).ok());
  REQUIRE(s.all.cache.get()->at(0).slots[slot].policy.budget_bytes == 1 << 20);
  REQUIRE(s.all.cache.get()->at(1).slots[slot].policy.budget_bytes == 0);
}

}  // namespace
}  // namespace quire::test
