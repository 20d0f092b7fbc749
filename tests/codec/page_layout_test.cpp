// Page geometry. Oracle: the numbers of design section 5, segments placed one by one
// (support/codec_layout.hpp), and what a segment must not do: overlap, leave the page, miss its
// alignment.
#include "quire/codec/page_layout.hpp"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_layout.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

TEST_CASE("K8V4 and K4V2 get the promised pages at head dim 64, 128 and 256", "[codec][layout]") {
  const struct {
    std::uint32_t dim;
    std::uint64_t page;
    std::uint32_t high, low;
  } promised[] = {{64, 7168, 64, 112}, {128, 14336, 64, 128}, {256, 13312, 32, 64}};
  for (const auto& p : promised) {
    const Expected<PageLayout> made = page_layout(test::diffkv_spec(p.dim));
    INFO("dim " << p.dim);
    REQUIRE(made.ok());
    REQUIRE(made.value().page_bytes == p.page);
    REQUIRE(made.value().tier_count == 2);
    REQUIRE(made.value().tier[0].tokens == p.high);
    REQUIRE(made.value().tier[1].tokens == p.low);
  }
}

TEST_CASE("a token costs no more page bytes than promised", "[codec][layout]") {
  const struct {
    std::uint32_t dim;
    std::uint64_t high, low;
  } promised[] = {{64, 112, 64}, {128, 224, 112}};
  for (const auto& p : promised) {
    const PageLayout layout = page_layout(test::diffkv_spec(p.dim)).value();
    INFO("dim " << p.dim);
    REQUIRE(layout.page_bytes <= p.high * layout.tier[0].tokens);
    REQUIRE(layout.page_bytes <= p.low * layout.tier[1].tokens);
  }
}

TEST_CASE("records count codes, scales, zeros, score and position", "[codec][layout]") {
  const Format high = test::affine_format(8, 4);
  REQUIRE(record_bytes(high, 128, 128, {}) == 208);
  REQUIRE(record_bytes(test::affine_format(4, 2), 128, 128, {}) == 112);
  REQUIRE(record_bytes(high, 64, 64, {}) == 112);
  REQUIRE(record_bytes(high, 128, 64, {}) == 132 + 36 + 8);
  REQUIRE(record_bytes(high, 128, 128, {false, true, false}) == 204);
  REQUIRE(record_bytes(high, 128, 128, {true, false, false}) == 204);
  REQUIRE(record_bytes(high, 128, 128, {false, false, true}) == 202);
  // quire_budget at D = 64: K6V4 92 bytes, K4V2 60 bytes with score and position.
  const Format k6v4 = {{Grid::kSymmetricUniform, 6, 0, 1}, {Grid::kSymmetricTable, 4, 0, 1}};
  const Format k4v2 = {{Grid::kSymmetricTable, 4, 0, 1}, {Grid::kSymmetricTable, 2, 0, 1}};
  REQUIRE(record_bytes(k6v4, 64, 64, {}) == 92);
  REQUIRE(record_bytes(k4v2, 64, 64, {}) == 60);
}

// Every segment where the reference places it.
void check_segments(const TierLayout& layout,
                    const Format& format,
                    std::uint32_t dim_k,
                    std::uint32_t dim_v,
                    const TokenFields& fields,
                    std::uint32_t tokens,
                    test::FirstFailure& failures) {
  const std::uint32_t offset[] = {layout.k_plane[0],
                                  layout.k_plane[1],
                                  layout.v_plane[0],
                                  layout.v_plane[1],
                                  layout.k_meta,
                                  layout.v_meta,
                                  layout.score,
                                  layout.position,
                                  layout.bias};
  const std::vector<test::Segment> expected =
      test::segments_of(format, dim_k, dim_v, fields, tokens);
  std::uint64_t end = 0;
  std::uint64_t record = 0;
  for (std::size_t s = 0; s < expected.size(); ++s) {
    record += expected[s].bytes;
    if (expected[s].bytes == 0) continue;
    const bool aligned = offset[s] % (s < 4 ? 128 : 64) == 0;
    failures.check(offset[s] == expected[s].offset && aligned && offset[s] >= end,
                   test::describe(format.k),
                   " / ",
                   test::describe(format.v),
                   " segment ",
                   s);
    end = offset[s] + expected[s].bytes;
  }
  failures.check(layout.bytes == end, "end ", layout.bytes, " expected ", end);
  failures.check(
      layout.record_bytes * std::uint64_t{tokens} == record, "record ", layout.record_bytes);
  failures.check(layout.tokens == tokens && layout.head_dim_k == dim_k &&
                     layout.head_dim_v == dim_v && layout.fields.bytes() == fields.bytes() &&
                     format_id(layout.format) == format_id(format),
                 "the question is not repeated");
}

TEST_CASE("segments are aligned, ordered and disjoint for every format, head dim and field",
          "[codec][layout]") {
  test::FirstFailure failures;
  for (const std::uint32_t dim_k : test::kHeadDims) {
    const std::uint32_t dim_v = dim_k == 64 ? 80 : dim_k;
    std::uint32_t walk = 0;
    for (const VectorFormat& k : test::formats_of(dim_k)) {
      for (const VectorFormat& v : test::formats_of(dim_v)) {
        for (std::uint32_t bits = 0; bits < 8; ++bits) {
          const TokenFields fields = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
          const std::uint32_t tokens = 16 * (1 + walk++ % 8);
          check_segments(tier_layout({k, v}, dim_k, dim_v, fields, tokens),
                         {k, v},
                         dim_k,
                         dim_v,
                         fields,
                         tokens,
                         failures);
        }
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("a tier fits the largest multiple of 16 tokens up to 128", "[codec][layout]") {
  test::Rng rng(91);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const PageLayoutSpec spec = test::random_spec(rng);
    const std::uint64_t page = 64 * (1 + rng.below(1024));
    const TierLayout layout =
        fit_tier(spec.tier[0], spec.head_dim_k, spec.head_dim_v, spec.fields, page);
    const std::uint64_t expected = test::tokens_in(spec, 0, page);
    failures.check(layout.tokens == expected, "page ", page, " expected ", expected);
    failures.check(expected == 0 || layout.bytes <= page, "page ", page, " is left");
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("a given page size is used as it is", "[codec][layout]") {
  for (const std::uint64_t page : {3584u, 4160u, 7168u, 16384u, 20032u, 1u << 20}) {
    PageLayoutSpec spec = test::diffkv_spec(128);
    spec.page_bytes = page;
    const Expected<PageLayout> made = page_layout(spec);
    INFO("page " << page);
    REQUIRE(made.ok());
    REQUIRE(made.value().page_bytes == page);
    for (std::uint32_t t = 0; t < 2; ++t) {
      REQUIRE(made.value().tier[t].tokens == test::tokens_in(spec, t, page));
      REQUIRE(made.value().tier[t].bytes <= page);
    }
  }
}

TEST_CASE("waste is the share of a full page without records", "[codec][layout]") {
  const PageLayout layout = page_layout(test::diffkv_spec(128)).value();
  REQUIRE(layout.waste(1) == 0.0);  // 128 * 112 = 14336
  REQUIRE(std::fabs(layout.waste(0) - (14336.0 - 64 * 208) / 14336.0) <= 0x1.0p-52);
}

// Asked with the size that the refusal names, the same question is answered.
TEST_CASE("a page too small is refused with the bytes that are enough", "[codec][layout]") {
  test::Rng rng(92);
  INFO(rng.describe());
  for (int repeat = 0; repeat < 500; ++repeat) {
    PageLayoutSpec spec = test::random_spec(rng);
    std::uint64_t least = 0;
    for (std::uint32_t t = 0; t < spec.tier_count; ++t)
      least = std::max(least, test::bytes_for(spec, t, 16));
    const std::uint64_t enough = round_up(least, std::uint64_t{64});
    spec.page_bytes = enough - 64;
    if (spec.page_bytes == 0) continue;  // would mean: search
    const Expected<PageLayout> refused = page_layout(spec);
    INFO("least " << least << " of " << test::describe(spec.tier[0].k) << " / "
                  << test::describe(spec.tier[0].v));
    REQUIRE_FALSE(refused.ok());
    REQUIRE(std::string(refused.status().field) == "page_bytes");
    REQUIRE(refused.status().given == enough - 64);
    REQUIRE(refused.status().needed >= least);
    spec.page_bytes = refused.status().needed;
    REQUIRE(page_layout(spec).ok());
    REQUIRE(refused.status().needed == enough);
  }
}

Status status_of(const PageLayoutSpec& spec) { return page_layout(spec).status(); }

bool names(const Status& status, const char* field, const char* in_rule, std::uint64_t given) {
  return status.code == StatusCode::kInvalidArgument && std::string(status.field) == field &&
         std::strstr(status.rule, in_rule) != nullptr && status.given == given;
}

TEST_CASE("bad head dims, tier counts and page sizes are refused by name and range",
          "[codec][layout]") {
  for (const std::uint32_t dim : {0u, 8u, 15u, 17u, 24u, 264u, 272u, 4096u, ~0u}) {
    INFO("dim " << dim);
    PageLayoutSpec spec = test::diffkv_spec(64);
    spec.head_dim_k = dim;
    REQUIRE(names(status_of(spec), "head_dim_k", "multiple of 16 from 16 to 256", dim));
    spec = test::diffkv_spec(64);
    spec.head_dim_v = dim;
    REQUIRE(names(status_of(spec), "head_dim_v", "multiple of 16 from 16 to 256", dim));
  }
  for (const std::uint32_t tiers : {0u, 3u, 4u, ~0u}) {
    INFO("tiers " << tiers);
    PageLayoutSpec spec = test::diffkv_spec(64);
    spec.tier_count = tiers;
    REQUIRE(names(status_of(spec), "tier_count", "1 or 2", tiers));
  }
  for (const std::uint64_t page : {1ull, 63ull, 7167ull, 7200ull, (1ull << 20) + 64, 1ull << 40}) {
    INFO("page " << page);
    PageLayoutSpec spec = test::diffkv_spec(64);
    spec.page_bytes = page;
    REQUIRE(names(status_of(spec), "page_bytes", "multiple of 64 up to 1 MiB", page));
  }
}

TEST_CASE("a bad format of any tier and side is refused by its field", "[codec][layout]") {
  for (std::uint32_t t = 0; t < 2; ++t) {
    for (const bool v_side : {false, true}) {
      INFO("tier " << t << (v_side ? " v" : " k"));
      const auto with = [&](const VectorFormat& bad) {
        PageLayoutSpec spec = test::diffkv_spec(80);
        (v_side ? spec.tier[t].v : spec.tier[t].k) = bad;
        return status_of(spec);
      };
      REQUIRE(names(with({static_cast<Grid>(0), 4, 0, 0}), "grid", "1 to 5", 0));
      REQUIRE(names(with({Grid::kAffine, 7, 0, 0}), "bits", "affine", 7));
      REQUIRE(names(with({Grid::kAffine, 4, 48, 0}), "group", "32 or 64", 48));
      REQUIRE(names(with({Grid::kAffine, 4, 32, 0}), "group", "divisor", 32));
      REQUIRE(names(with({Grid::kAffine, 4, 0, 5}), "transform", "bit set", 5));
    }
  }
}

TEST_CASE("tiers that are not counted are not looked at", "[codec][layout]") {
  PageLayoutSpec spec = test::diffkv_spec(64);
  spec.tier_count = 1;
  spec.tier[1].k = {static_cast<Grid>(77), 99, 5, 9};
  REQUIRE(status_of(spec).ok());
}

TEST_CASE("transforms differ between K and V, never between tiers", "[codec][layout]") {
  PageLayoutSpec spec = test::diffkv_spec(64);
  for (auto& tier : spec.tier) tier.k.transform = kTransformHadamard | kTransformOffset;
  REQUIRE(status_of(spec).ok());
  for (const bool v_side : {false, true}) {
    PageLayoutSpec bad = spec;
    (v_side ? bad.tier[1].v : bad.tier[1].k).transform = kTransformHadamard;
    const Status status = status_of(bad);
    INFO((v_side ? "v" : "k"));
    REQUIRE(status.code == StatusCode::kInvalidArgument);
    REQUIRE(std::string(status.field) == "transform");
    REQUIRE(std::strstr(status.rule, "same for all tiers") != nullptr);
  }
}

TEST_CASE("differing transforms are reported with those of the side that differs",
          "[codec][layout]") {
  for (const bool v_side : {false, true}) {
    PageLayoutSpec bad = test::diffkv_spec(64);
    for (auto& tier : bad.tier) tier.k.transform = kTransformHadamard | kTransformOffset;
    (v_side ? bad.tier[1].v : bad.tier[1].k).transform = kTransformHadamard;
    const Status status = status_of(bad);
    INFO((v_side ? "v" : "k") << " needed " << status.needed << " given " << status.given);
    REQUIRE(status.needed == (v_side ? 0u : 3u));
    REQUIRE(status.given == 1);
  }
}

}  // namespace
}  // namespace quire
