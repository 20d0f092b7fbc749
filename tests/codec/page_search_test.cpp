// The search for a page size. Oracle: all multiples of 512 up to 16 KiB, compared with exact
// fractions (support/codec_layout.hpp).
#include <cmath>
#include <string>
#include <vector>

#include "quire/codec/page_layout.hpp"
#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_layout.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

std::string describe(const PageLayoutSpec& spec) {
  std::string text = "dims " + std::to_string(spec.head_dim_k) + "/" +
                     std::to_string(spec.head_dim_v) + " fields " +
                     std::to_string(spec.fields.bytes()) + " expected " +
                     std::to_string(spec.expected_tokens);
  for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
    text += "; " + test::describe(spec.tier[t].k) + " / " + test::describe(spec.tier[t].v);
  }
  return text;
}

void check_search(const PageLayoutSpec& spec, test::FirstFailure& failures) {
  const Expected<PageLayout> made = page_layout(spec);
  failures.check(made.ok(), describe(spec), " refused: ", made.status().field);
  if (!made.ok()) return;
  const PageLayout& layout = made.value();
  const std::uint64_t expected = test::search_page(spec);
  failures.check(layout.page_bytes == expected,
                 describe(spec),
                 ": got ",
                 layout.page_bytes,
                 " expected ",
                 expected);
  for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
    const std::uint64_t tokens = test::tokens_in(spec, t, layout.page_bytes);
    failures.check(layout.tier[t].tokens == tokens && tokens >= 16 &&
                       layout.tier[t].bytes <= layout.page_bytes,
                   describe(spec),
                   ": tokens ",
                   layout.tier[t].tokens,
                   " of tier ",
                   t);
  }
}

TEST_CASE("the search finds the least waste of the cheapest tier, then the least worst waste",
          "[codec][layout][search]") {
  test::Rng rng(95);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (int repeat = 0; repeat < 4000; ++repeat) {
    PageLayoutSpec spec = test::random_spec(rng);
    check_search(spec, failures);
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("the search with expected tokens finds the least expected bytes",
          "[codec][layout][search]") {
  test::Rng rng(96);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (int repeat = 0; repeat < 4000; ++repeat) {
    PageLayoutSpec spec = test::random_spec(rng);
    spec.expected_tokens = 1 + rng.below(1u << rng.below(20));
    check_search(spec, failures);
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("short contexts get pages that are not larger", "[codec][layout][search]") {
  for (const std::uint32_t dim : {64u, 128u, 256u}) {
    std::uint64_t before = 0;
    for (std::uint32_t expected = 16; expected <= 1u << 20; expected *= 4) {
      PageLayoutSpec spec = test::diffkv_spec(dim);
      spec.expected_tokens = expected;
      const std::uint64_t page = page_layout(spec).value().page_bytes;
      INFO("dim " << dim << " expected tokens " << expected);
      REQUIRE(page >= before);
      before = page;
    }
    PageLayoutSpec spec = test::diffkv_spec(dim);
    spec.expected_tokens = 128;
    REQUIRE(page_layout(spec).value().page_bytes <
            page_layout(test::diffkv_spec(dim)).value().page_bytes);
  }
}

TEST_CASE("every pair of equal formats gets a page, at every head dim", "[codec][layout][search]") {
  test::FirstFailure failures;
  for (std::uint32_t dim = 16; dim <= 256; dim += 16) {
    for (const VectorFormat& f : test::formats_of(dim)) {
      PageLayoutSpec spec;
      spec.tier[0] = {f, f};
      spec.head_dim_k = dim;
      spec.head_dim_v = dim;
      check_search(spec, failures);
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("formats too wide for 16 KiB get the smallest page that holds 16 tokens of every tier",
          "[codec][layout][search]") {
  const Format f16 = {{Grid::kF16, 16, 0, 0}, {Grid::kF16, 16, 0, 0}};
  PageLayoutSpec spec = test::diffkv_spec(256);
  spec.tier_count = 1;
  spec.tier[0] = f16;
  const Expected<PageLayout> alone = page_layout(spec);
  REQUIRE(alone.ok());
  REQUIRE(alone.value().page_bytes == 16896);  // 16 * 1024 + 2 * 64, up to a multiple of 512
  REQUIRE(alone.value().tier[0].tokens == 16);
  for (const std::uint32_t wide : {0u, 1u}) {  // the wide tier may be either
    spec = test::diffkv_spec(256);
    spec.tier[wide] = f16;
    const Expected<PageLayout> made = page_layout(spec);
    INFO("wide tier " << wide);
    REQUIRE(made.ok());
    REQUIRE(made.value().page_bytes == 16896);
    for (std::uint32_t t = 0; t < 2; ++t) REQUIRE(made.value().tier[t].tokens >= 16);
  }
}

}  // namespace
}  // namespace quire
