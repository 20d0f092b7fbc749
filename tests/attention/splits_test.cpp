// How a call is cut: parts cover every segment once, tasks get equal bytes, and every token counts
// exactly once. Oracle: sums over segments, and probabilities that add up to one per query.
#include <memory>

#include "src/cpu/attention/parts.hpp"
#include "support/attention_call.hpp"
#include "support/attention_formats.hpp"
#include "support/attention_threads.hpp"
#include "support/catch.hpp"

namespace quire {
namespace {

// One long sequence among many short ones.
class LongAndShort {
 public:
  LongAndShort(std::uint32_t index, std::uint32_t short_count, test::Rng& rng) {
    for (std::uint32_t i = 0; i <= short_count; ++i) {
      const std::int32_t length =
          i == short_count / 2 ? 2500 : static_cast<std::int32_t>(i * 7 % 60);
      heads_.push_back(
          std::make_unique<test::TestHead>(test::walk_spec(index, 64, 64, length), rng));
      call.heads.push_back(heads_.back().get());
    }
    call.group = 2;
    call.score_rows = 1;
    call.statistic = Statistic::kMeanSum;
    call.random_queries(rng, 1.0f);
  }

  test::HeadCall call;

 private:
  std::vector<std::unique_ptr<test::TestHead>> heads_;
};

std::uint64_t segment_bytes(const Segment& s) {
  return std::uint64_t{s.count} * (s.layout->record_bytes - s.layout->fields.bytes());
}

struct Cut {
  std::vector<std::uint64_t> task_bytes;
  std::uint64_t largest_segment = 0;
};

// Follows the plan of a call: every segment is in exactly one part, parts in order.
Cut check_cut(const AttentionCall& call) {
  const test::Bytes memory(call.workspace.bytes);
  Arena arena({memory.data(), memory.size()});
  const cpu::CallPlan plan = cpu::plan_call(call, arena);
  Cut cut;
  cut.task_bytes.assign(plan.task_count, 0);
  std::uint32_t task = 0;
  std::uint32_t next_part = 0;
  for (std::uint32_t u = 0; u < call.unit_count; ++u) {
    const HeadView& view = call.units[u].view;
    std::uint32_t next = 0;
    REQUIRE(plan.units[u].first_part == next_part);
    for (std::uint32_t p = 0; p < plan.units[u].part_count; ++p) {
      const cpu::Part& part = plan.parts[next_part++];
      REQUIRE(part.unit == u);
      REQUIRE(part.first_segment == next);
      REQUIRE(part.task >= task);
      task = part.task;
      REQUIRE(task < plan.task_count);
      for (; next < part.last_segment; ++next) {
        const std::uint64_t bytes = segment_bytes(view.segment(next));
        cut.task_bytes[task] += bytes;
        cut.largest_segment = std::max(cut.largest_segment, bytes);
      }
    }
    REQUIRE(next == view.segment_count());
  }
  REQUIRE(next_part == plan.part_count);
  return cut;
}

TEST_CASE("automatic splits give every task the same bytes, up to a segment",
          "[attention][splits]") {
  test::Rng rng(1);
  INFO(rng.describe());
  for (const std::uint32_t index : {2u, 4u, 5u, 8u, 14u}) {
    LongAndShort mix(index, 12, rng);
    for (const std::uint32_t width : {1u, 2u, 3u, 5u, 8u, 16u}) {
      test::Workers workers(width, test::Order::kForward);
      mix.call.parallel = workers.parallel();
      test::attend(cpu_backend(), mix.call, [&](AttentionCall& call) {
        const Cut cut = check_cut(call);
        REQUIRE(cut.task_bytes.size() == width);
        std::uint64_t total = 0;
        for (const std::uint64_t bytes : cut.task_bytes) total += bytes;
        for (const std::uint64_t bytes : cut.task_bytes) {
          INFO("head " << index << " width " << width << " total " << total);
          REQUIRE(bytes * width <= total + cut.largest_segment * width);
          REQUIRE(total <= (bytes + cut.largest_segment) * width);
        }
      });
    }
  }
}

TEST_CASE("fixed splits cover every segment once on any number of tasks", "[attention][splits]") {
  test::Rng rng(2);
  INFO(rng.describe());
  LongAndShort mix(4, 9, rng);
  for (const std::uint32_t splits : {1u, 2u, 7u, 64u}) {
    for (const std::uint32_t width : {1u, 3u, 8u}) {
      test::Workers workers(width, test::Order::kForward);
      mix.call.parallel = workers.parallel();
      mix.call.splits = splits;
      test::attend(cpu_backend(), mix.call, [&](AttentionCall& call) { check_cut(call); });
    }
  }
}

TEST_CASE("mean scores of a step add up to one for every head", "[attention][splits]") {
  test::Rng rng(3);
  INFO(rng.describe());
  for (const std::uint32_t index : {2u, 5u, 16u}) {
    LongAndShort mix(index, 11, rng);
    for (const std::uint32_t width : {1u, 2u, 3u, 8u}) {
      for (const std::uint32_t splits : {0u, 3u}) {
        test::Workers workers(width, test::Order::kThreads);
        mix.call.parallel = workers.parallel();
        mix.call.splits = splits;
        for (const test::TestHead* head : mix.call.heads) head->set_scores(0.0f);
        test::attend(cpu_backend(), mix.call);
        for (std::uint32_t u = 0; u < mix.call.heads.size(); ++u) {
          double sum = 0.0;
          for (const float x : mix.call.heads[u]->scores()) sum += static_cast<double>(x);
          const double want = mix.call.heads[u]->count() == 0 ? 0.0 : 1.0;
          INFO("head " << index << " width " << width << " splits " << splits << " unit " << u);
          REQUIRE(std::fabs(sum - want) <= test::score_tolerance(test::scale_of(mix.call, u)));
        }
      }
    }
  }
}

TEST_CASE("the number of splits changes nothing but fp32 rounding", "[attention][splits]") {
  test::Rng rng(4);
  INFO(rng.describe());
  for (const std::uint32_t index : {4u, 5u, 9u}) {
    LongAndShort mix(index, 3, rng);
    const test::HeadResult one = test::attend(cpu_backend(), mix.call);
    for (const std::uint32_t splits : {0u, 2u, 3u, 16u, 64u}) {
      mix.call.splits = splits;
      const test::HeadResult other = test::attend(cpu_backend(), mix.call);
      for (std::uint32_t u = 0; u < mix.call.heads.size(); ++u) {
        const test::AttentionScale s = test::scale_of(mix.call, u);
        for (std::size_t i = u * 128; i < (u + 1) * 128; ++i) {
          const double error =
              std::fabs(static_cast<double>(one.out[i]) - static_cast<double>(other.out[i]));
          REQUIRE(error <= 2.0 * (static_cast<double>(s.n) + 16.0) * test::kFloatEps * s.v_max);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire
