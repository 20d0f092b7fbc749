// Oracle: the names of the demo's table written out, with the formats and budgets they stand for.
#include "setting.hpp"

#include <algorithm>

#include "support/catch.hpp"

namespace smol {
namespace {

constexpr CacheShape kShape = {30, 9, 3, 64, 1024};

Setting parsed(const std::string& name) {
  Setting setting;
  const std::string problem = parse_setting(name, kShape, &setting);
  INFO(name << ": " << problem);
  REQUIRE(problem.empty());
  return setting;
}

std::string refusal(const std::string& name) {
  Setting setting;
  return parse_setting(name, kShape, &setting);
}

TEST_CASE("the default table has 24 settings, fp16 first, each once and each understood",
          "[demo][setting]") {
  std::vector<std::string> names = default_settings();
  REQUIRE(names.size() == 24);
  CHECK(names[0] == "fp16");
  for (const std::string& name : names) CHECK(parsed(name).name == name);
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}

TEST_CASE("uniform names give widths, a 16-bit ring of 64 and no sink", "[demo][setting]") {
  const Setting s = parsed("K8V4");
  CHECK(s.policy.kind == QUIRE_KEEP_ALL);
  CHECK(s.group.layout.tier_count == 1);
  CHECK(s.group.layout.flags == 0);  // score and position are stored
  CHECK(s.group.layout.tier[0].k.grid == QUIRE_GRID_AFFINE);
  CHECK(s.group.layout.tier[0].k.bits == 8);
  CHECK(s.group.layout.tier[0].v.bits == 4);
  CHECK(s.group.layout.tier[0].k.transform == QUIRE_TRANSFORM_NONE);
  CHECK(s.group.ring_format == QUIRE_RING_F16);
  CHECK(s.policy.recent_window == 64);
  CHECK(s.policy.sink_tokens == QUIRE_NONE);
  const Setting fp16 = parsed("fp16");
  CHECK(fp16.group.layout.tier[0].k.grid == QUIRE_GRID_F16);
  CHECK(fp16.group.layout.flags == (QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION));
}

TEST_CASE("thresholds and targets are read from names", "[demo][setting]") {
  const Setting plain = parsed("diffkv_upstream:3,0.1");
  CHECK(plain.policy.alpha_high == 3.0f);
  CHECK(plain.policy.alpha_low == 0.1f);
  CHECK(plain.policy.byte_target == 0.0);
  CHECK(plain.policy.step_rule == QUIRE_STEP_UPSTREAM);
  CHECK(parsed("diffkv_upstream:3,0.1@0.21").policy.byte_target == 0.21);
  CHECK(parsed("diffkv_paper:1,0.02").policy.step_rule == QUIRE_STEP_PAPER);
  CHECK(parsed("quire_budget:0.29").policy.byte_target == 0.29);
  CHECK(parsed("snapkv@0.25").policy.byte_target == 0.25);
  CHECK(parsed("snapkv@0.25").policy.budget_tokens == 0);
}

TEST_CASE("quire_uniform takes widths and picks the grid", "[demo][setting]") {
  const Setting s = parsed("quire_uniform:K4V3");
  CHECK(s.group.layout.tier[0].k.grid == QUIRE_GRID_SYMMETRIC_TABLE);
  CHECK(s.group.layout.tier[0].v.bits == 3);
  CHECK(s.group.layout.tier[0].k.transform == (QUIRE_TRANSFORM_HADAMARD | QUIRE_TRANSFORM_OFFSET));
  CHECK(s.group.layout.tier[0].v.transform == QUIRE_TRANSFORM_HADAMARD);
  CHECK(s.group.ring_format == QUIRE_RING_K8V8);
  CHECK(s.policy.sink_tokens == 1);
  CHECK(s.policy.recent_window == 48);
  CHECK(parsed("quire_uniform:K6V4").group.layout.tier[0].k.grid == QUIRE_GRID_SYMMETRIC_UNIFORM);
}

TEST_CASE("names that mean nothing are refused with a reason", "[demo][setting][bad]") {
  for (const char* name : {"",
                           "K8",
                           "K5V4",
                           "K8V4:1",
                           "K8V4@0.2",
                           "K8V4 ",
                           "fp32",
                           "quire_uniform:K8V4",
                           "quire_budget",
                           "quire_budget:x",
                           "quire_budget:0.2x",
                           "snapkv",
                           "h2o:0.2",
                           "diffkv_upstream:1",
                           "diffkv_upstream:1,x",
                           "diffkv_upstream:1,0.02@",
                           "diffkv_upstream:1,0.02@-1",
                           "diffkv_upstream:1,0.02@nan"}) {
    INFO(name);
    CHECK_FALSE(refusal(name).empty());
  }
}

}  // namespace
}  // namespace smol
