// quire_explain: what it says about a call. Oracle: quire_attention itself, which takes or refuses
// the same call, and the layout's own numbers.
#include <cstring>

#include "support/attention_cache.hpp"

namespace quire {
namespace {

using test::CacheBox;
using test::CacheSpec;

quire_explain_report explain(const CacheBox& box, const quire_attention_args& args) {
  quire_explain_report report = QUIRE_EXPLAIN_REPORT_INIT;
  REQUIRE(quire_explain(box.cache.get(), &args, &report) == QUIRE_OK);
  return report;
}

TEST_CASE("explain names kernel, instruction set and bytes", "[attention][explain]") {
  for (std::uint32_t recipe = 1; recipe <= 9; ++recipe) {
    const CacheSpec spec(recipe, 2, 3, 64);
    CacheBox box(spec, 1);
    const quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    const quire_explain_report report = explain(box, args);
    INFO("recipe " << recipe << " kernel " << report.kernel);
    REQUIRE(report.supported == 1);
    REQUIRE(std::string(report.reason).empty());
    REQUIRE(std::string(report.kernel).find("cpu") == 0);
    REQUIRE(std::string(report.kernel).size() > std::strlen("cpu decode, "));
    quire_layout layout = QUIRE_LAYOUT_INIT;
    REQUIRE(quire_layout_make(&spec.group.layout, &layout) == QUIRE_OK);
    const bool scored = (spec.group.layout.flags & QUIRE_LAYOUT_NO_SCORE) == 0;
    const bool positions = (spec.group.layout.flags & QUIRE_LAYOUT_NO_POSITION) == 0;
    const std::uint64_t fields = (scored ? 4u : 0u) + (positions ? 4u : 0u);
    REQUIRE(report.bytes_per_token == layout.tier[0].record_bytes - fields);
    REQUIRE(report.score_bytes_per_token == (scored ? 8 + 4 * 3 : 0));
    REQUIRE(report.workspace_bytes > 0);
    REQUIRE(report.workspace_bytes <= box.cache.stats().workspace_bytes);
  }
}

TEST_CASE("explain refuses what attention refuses, for the same field", "[attention][explain]") {
  CacheSpec spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2, 2, 64);
  spec.splits = 4;
  CacheBox box(spec, 2);
  box.open_with(30);
  box.begin({0});
  const std::vector<float> q = box.rng.normals(16 * 4 * 64);
  std::vector<float> out(q.size());
  const auto both = [&](auto&& change) {
    quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    args.q = rows_of(q.data());
    args.out = rows_of(out.data());
    change(args);
    const quire_explain_report report = explain(box, args);
    const Result result = box.cache.attention(args);
    INFO(report.reason);
    REQUIRE((report.supported == 1) == result.ok());
    if (result.ok()) return;
    const std::string field = result.field();
    REQUIRE(std::string(report.reason).compare(0, field.size() + 1, field + ":") == 0);
  };
  both([](auto& a) { a.rows = 17; });
  both([](auto& a) { a.layer = 1; });
  both([](auto& a) { a.splits = 5; });
  both([](auto& a) { a.score_rows = 2; });
  both([](auto& a) { a.rows = 4, a.score_rows = 5; });
  both([](auto& a) { a.rule.scale = -1.0f; });
  both([](auto& a) { a.rule.soft_cap = std::nanf(""); });
  both([](auto& a) { a.rule.sliding_window = -1; });
  both([](auto& a) { a.rows = 16, a.splits = 4, a.score_rows = QUIRE_NONE; });
  both([](auto& a) { a.rows = 16, a.score_rows = 16; });
}

TEST_CASE("explain touches no data and needs no step", "[attention][explain]") {
  CacheBox box(CacheSpec(QUIRE_RECIPE_KEEP_ALL, 1, 1, 64), 3);
  quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
  args.q.data = reinterpret_cast<void*>(std::uintptr_t{64});  // not memory
  args.out.data = reinterpret_cast<void*>(std::uintptr_t{128});
  REQUIRE(explain(box, args).supported == 1);
}

TEST_CASE("explain names the argument that is wrong", "[attention][explain]") {
  CacheBox box(CacheSpec(QUIRE_RECIPE_KEEP_ALL, 1, 1, 64), 4);
  quire_error error = QUIRE_ERROR_INIT;
  quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
  args.error = &error;
  quire_explain_report report = QUIRE_EXPLAIN_REPORT_INIT;
  REQUIRE(quire_explain(nullptr, &args, &report) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(std::string(error.field) == "cache");
  REQUIRE(quire_explain(box.cache.get(), nullptr, &report) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(quire_explain(box.cache.get(), &args, nullptr) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(std::string(error.field) == "report");
  report.struct_size = 4;
  REQUIRE(quire_explain(box.cache.get(), &args, &report) == QUIRE_ABI_MISMATCH);
  REQUIRE(std::string(error.field) == "struct_size");
}

}  // namespace
}  // namespace quire
