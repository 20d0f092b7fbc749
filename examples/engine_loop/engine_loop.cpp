// The loop of a serving engine around one cache: a shared system prompt, chunked prompts, several
// turns, speculative rows, swapping under pressure, layers of two kinds. docs/lifecycle.md explains
// the calls; the model (model.hpp) is random numbers.
#include <algorithm>
#include <deque>

#include "examples/engine_loop/model.hpp"

namespace engine {

constexpr std::size_t kChunk = 64;  // tokens of a prompt at once
constexpr std::size_t kMostRunning = 6;

class Engine {
 public:
  Engine() {
    quire_group_desc group[2] = {QUIRE_GROUP_DESC_INIT, QUIRE_GROUP_DESC_INIT};
    describe(group, &policy_);
    quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
    desc.flags = QUIRE_CACHE_SHARING;
    desc.max_sequences = kMostRunning + 1;
    desc.max_tokens = 1024;
    desc.group_count = 2;
    desc.groups = group;
    desc.pages = 260;  // in each pool: too few for all at once
    need(quire::Cache::create(desc, &cache_));
  }

  // A prompt that many requests begin with.
  void freeze_prefix(const Tokens& text) {
    Sequence s;
    s.text = text;
    need(cache_.open(policy_, &s.slot));
    if (!prompt(s)) std::exit(1);
    need(cache_.freeze(s.slot, text.data(), static_cast<std::uint32_t>(text.size()), nullptr));
  }

  void submit(Sequence s) { waiting_.push_back(std::move(s)); }
  bool busy() const { return !waiting_.empty() || !running_.empty() || !swapped_.empty(); }

  void step() {
    while (!running_.empty() && !step_fits()) swap_out();
    while (!swapped_.empty() && swap_in()) continue;
    while (!waiting_.empty() && admit()) continue;
    if (running_.empty()) return;
    const std::vector<Tokens> rows = decode(cache_, running_);
    for (std::size_t i = 0; i < running_.size(); ++i) judge(running_[i], rows[i]);
    for (std::size_t i = running_.size(); i-- > 0;)
      if (running_[i].text.size() >= running_[i].goal) answered(i);
    ++steps_;
  }

  bool finish() {
    std::uint32_t closed = 0;
    need(cache_.evict_prefixes(~std::uint64_t{0}, nullptr, &closed));
    const quire_stats stats = cache_.stats();
    std::printf("%u steps, %u tokens, %u of them guessed; prefix read %u times, %u swaps; ",
                steps_,
                tokens_,
                guessed_,
                prefix_reads_,
                swaps_);
    std::printf(
        "left: %u sequences, %u pages\n", stats.sequences, static_cast<unsigned>(stats.live_pages));
    return closed == 1 && stats.sequences == 0 && stats.live_pages == 0;
  }

 private:
  bool step_fits() const {
    std::vector<std::int32_t> slots;
    for (const Sequence& s : running_) slots.push_back(s.slot);
    const auto count = static_cast<std::uint32_t>(slots.size());
    std::uint64_t need_pages = 0, free_pages = 0;
    quire_headroom_pages(
        cache_.get(), slots.data(), count, kRows, &need_pages, &free_pages, nullptr);
    return need_pages <= free_pages;
  }
  bool prompt_fits(std::size_t length) const {
    const auto tokens = static_cast<std::uint32_t>(length);
    std::uint64_t need_pages = 0, free_pages = 0;
    quire_pages_for(cache_.get(), &policy_, tokens, &need_pages, &free_pages, nullptr);
    return need_pages <= free_pages;
  }

  void swap_out() {
    Sequence s = std::move(running_.back());
    running_.pop_back();
    std::uint64_t bytes = 0;
    need(cache_.export_bytes(s.slot, &bytes));
    s.frame.resize(bytes);
    need(cache_.export_frame(s.slot, s.frame.data(), bytes));
    need(cache_.close(s.slot));
    swapped_.push_back(std::move(s));
    ++swaps_;
  }

  bool swap_in() {
    Sequence& s = swapped_.front();
    if (running_.size() == kMostRunning) return false;
    if (!cache_.import_frame(s.frame.data(), s.frame.size(), &s.slot).ok()) return false;
    running_.push_back(std::move(s));
    swapped_.pop_front();
    return keep_last();
  }

  // The newest sequence runs if its prompt and everybody's next step fit; else it is swapped out.
  bool keep_last() {
    if (prompt(running_.back()) && step_fits()) return true;
    swap_out();
    return false;
  }

  bool admit() {
    Sequence& s = waiting_.front();
    if (running_.size() == kMostRunning || !prompt_fits(s.text.size())) return false;
    quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
    quire_prefix_find_args find = QUIRE_PREFIX_FIND_ARGS_INIT;
    std::int32_t handle = -1;
    std::uint32_t held = 0;
    open.policy = &policy_;
    find.open = &open;
    find.token_ids = s.text.data();
    find.token_count = static_cast<std::uint32_t>(s.text.size()) - 1;  // one is left to attend
    find.slot = &handle;
    find.tokens = &held;
    need(cache_.find_prefix(find));
    need(handle >= 0 ? cache_.fork(handle, &s.slot) : cache_.open(policy_, &s.slot));
    prefix_reads_ += handle >= 0 ? 1 : 0;
    s.stored = s.prompt_begin = held;
    running_.push_back(std::move(s));
    waiting_.pop_front();
    return keep_last();
  }

  // What of a text is not stored yet, chunk by chunk; may be gone on with later.
  bool prompt(Sequence& s) {
    while (s.stored < s.text.size())
      if (!prefill(cache_, s, std::min(s.stored + kChunk, s.text.size()))) return false;
    return true;
  }

  // Row 0 is a token; guesses count as long as the model says the same.
  void judge(Sequence& s, const Tokens& row) {
    s.text.push_back(row[0]);
    std::uint32_t right = 0;
    while (right + 1 < kRows && s.text.size() < s.goal && row[right + 1] == next_token(s.text))
      s.text.push_back(row[++right]);
    need(cache_.accept(s.slot, right));
    s.stored = s.text.size();
    tokens_ += 1 + right;
    guessed_ += right;
  }

  // The user leaves, wants the end of the answer again, or goes on.
  void answered(std::size_t index) {
    Sequence& s = running_[index];
    if (s.turns-- == 0) {
      need(cache_.close(s.slot));
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
    } else if (s.turns % 2 == 1) {
      s.text.resize(s.stored = s.text.size() - 20);
      need(cache_.truncate(s.slot, static_cast<std::uint32_t>(s.stored), nullptr));
      s.goal = s.stored + 40;
    } else {
      s.prompt_begin = s.text.size();
      for (int i = 0; i < 30; ++i) s.text.push_back(guess(s.text, 0));
      s.goal = s.text.size() + 60;
      std::swap(s, running_.back());
      keep_last();
    }
  }

  quire::Cache cache_;
  quire_policy policy_ = QUIRE_POLICY_INIT;
  std::deque<Sequence> waiting_, swapped_;
  std::vector<Sequence> running_;
  std::uint32_t steps_ = 0, tokens_ = 0, guessed_ = 0, swaps_ = 0, prefix_reads_ = 0;
};

}  // namespace engine

int main() {
  engine::Tokens system = {1};
  while (system.size() < 100) system.push_back(engine::next_token(system));
  engine::Engine server;
  server.freeze_prefix(system);
  for (std::uint32_t i = 0; i < 24; ++i) {
    engine::Sequence s;
    s.text = system;
    s.text.push_back(static_cast<std::int32_t>(i));
    while (s.text.size() < 120 + i * 7 % 90) s.text.push_back(engine::next_token(s.text));
    s.goal = s.text.size() + 50 + i * 13 % 100;
    s.turns = static_cast<int>(i % 4);
    server.submit(s);
  }
  while (server.busy()) server.step();
  return server.finish() ? 0 : 1;
}
