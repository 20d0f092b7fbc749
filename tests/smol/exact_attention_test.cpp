// Oracles: attention in double precision, both the engine's own slow version and the tests' shared
// one; tolerances from compare.hpp. One token and equal keys are worked out by hand.
#include "exact_attention.hpp"

#include <algorithm>
#include <cmath>

#include "half.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/gen.hpp"
#include "support/oracle.hpp"

namespace smol::test {
namespace {

struct Data {
  AttentionShape shape;
  uint32_t tokens = 0;
  std::vector<float> q, k, v;

  std::size_t q_row() const { return std::size_t{shape.q_heads} * shape.head_dim; }
  std::size_t kv_row() const { return std::size_t{shape.kv_heads} * shape.head_dim; }

  quire::test::AttentionScale scale() const {
    quire::test::AttentionScale s;
    s.dim = shape.head_dim;
    s.n = tokens;
    s.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    for (std::size_t i = 0; i < q.size(); i += shape.head_dim)
      s.q_norm = std::max(s.q_norm, quire::test::norm(q.data() + i, s.dim));
    for (std::size_t i = 0; i < k.size(); i += shape.head_dim)
      s.k_norm = std::max(s.k_norm, quire::test::norm(k.data() + i, s.dim));
    s.v_max = quire::test::largest(v.data(), static_cast<int64_t>(v.size()));
    return s;
  }
};

Data make_data(quire::test::Rng& rng, const AttentionShape& shape, uint32_t tokens) {
  Data d = {shape, tokens, {}, {}, {}};
  d.q = rng.normals(tokens * d.q_row(), 1.5f);
  d.k = rng.normals(tokens * d.kv_row(), 1.5f);
  d.v = rng.normals(tokens * d.kv_row());
  for (float& x : d.k) x = round_to_half(x);
  for (float& x : d.v) x = round_to_half(x);
  return d;
}

void require_row(const Data& d, uint32_t row, const float* out, const float* lse) {
  std::vector<double> expected(d.q_row());
  std::vector<double> expected_lse(d.shape.q_heads);
  naive_attention(d.shape,
                  d.q.data() + row * d.q_row(),
                  d.k.data(),
                  d.v.data(),
                  1,
                  row + 1,
                  expected.data(),
                  expected_lse.data());
  const double tolerance = quire::test::output_tolerance(d.scale());
  for (std::size_t i = 0; i < d.q_row(); ++i) {
    INFO("row " << row << " element " << i);
    REQUIRE(std::fabs(static_cast<double>(out[i]) - expected[i]) <= tolerance);
  }
  for (std::size_t h = 0; lse != nullptr && h < d.shape.q_heads; ++h) {
    INFO("row " << row << " head " << h);
    REQUIRE(std::fabs(static_cast<double>(lse[h]) - expected_lse[h]) <=
            quire::test::lse_tolerance(d.scale()));
  }
}

void check_prompt(const Data& d, uint32_t threads, const std::vector<uint32_t>& rows) {
  Pool pool(threads);
  std::vector<float> out(d.q.size(), NAN);
  std::vector<float> lse(std::size_t{d.tokens} * d.shape.q_heads, NAN);
  prompt_attention(
      pool, d.shape, d.q.data(), d.k.data(), d.v.data(), d.tokens, out.data(), lse.data());
  for (const uint32_t row : rows) {
    require_row(d, row, out.data() + row * d.q_row(), lse.data() + row * d.shape.q_heads);
  }
  std::vector<float> again(d.q.size(), NAN);
  prompt_attention(
      pool, d.shape, d.q.data(), d.k.data(), d.v.data(), d.tokens, again.data(), nullptr);
  REQUIRE(again == out);
}

std::vector<uint32_t> all_rows(uint32_t tokens) {
  std::vector<uint32_t> rows(tokens);
  for (uint32_t i = 0; i < tokens; ++i) rows[i] = i;
  return rows;
}

}  // namespace

TEST_CASE("prompt attention agrees with double precision", "[smol][attention]") {
  // G = 1, 3, 4; lengths around the row block of 128.
  const AttentionShape shapes[] = {{1, 1, 16}, {2, 2, 64}, {3, 1, 32}, {9, 3, 64}, {8, 2, 48}};
  for (const AttentionShape& shape : shapes) {
    for (const uint32_t tokens : {1u, 2u, 127u, 128u, 129u, 300u}) {
      quire::test::Rng rng(tokens + shape.head_dim);
      INFO(rng.describe() << ", " << shape.q_heads << "/" << shape.kv_heads << " heads, " << tokens
                          << " tokens");
      check_prompt(make_data(rng, shape, tokens), 1 + tokens % 3, all_rows(tokens));
    }
  }
}

TEST_CASE("a prompt of 8192 tokens works", "[smol][attention]") {
  quire::test::Rng rng(11);
  INFO(rng.describe());
  const Data d = make_data(rng, {2, 1, 16}, 8192);
  check_prompt(d, 2, {0, 1, 127, 128, 4095, 4096, 8063, 8064, 8191});
}

TEST_CASE("decode attention agrees with double precision", "[smol][attention]") {
  const AttentionShape shapes[] = {{1, 1, 16}, {3, 1, 32}, {9, 3, 64}, {8, 2, 48}};
  for (const AttentionShape& shape : shapes) {
    for (const uint32_t tokens : {1u, 2u, 63u, 64u, 65u, 4097u}) {
      quire::test::Rng rng(tokens);
      INFO(rng.describe() << ", " << tokens << " tokens");
      const Data d = make_data(rng, shape, tokens);
      std::vector<float> out(d.q_row(), NAN);
      const float* last = d.q.data() + (tokens - 1) * d.q_row();
      decode_attention(shape, last, d.k.data(), d.v.data(), tokens, out.data());
      require_row(d, tokens - 1, out.data(), nullptr);
    }
  }
}

TEST_CASE("the slow version agrees with the tests' own oracle", "[smol][attention]") {
  quire::test::Rng rng(12);
  INFO(rng.describe());
  const Data d = make_data(rng, {6, 2, 32}, 70);
  std::vector<double> out(d.q.size());
  std::vector<double> lse(std::size_t{d.tokens} * d.shape.q_heads);
  naive_attention(
      d.shape, d.q.data(), d.k.data(), d.v.data(), d.tokens, d.tokens, out.data(), lse.data());
  for (uint32_t row = 0; row < d.tokens; ++row) {
    for (uint32_t h = 0; h < 6; ++h) {
      quire::test::OracleProblem p;
      p.q = d.q.data() + row * d.q_row() + h * 32;
      p.k = d.k.data() + h / 3 * 32;
      p.v = d.v.data() + h / 3 * 32;
      p.n = d.tokens;
      p.dim_k = p.dim_v = 32;
      p.k_stride = p.v_stride = 64;
      p.query_position = static_cast<int32_t>(row);
      p.scale = d.scale().scale;
      const quire::test::OracleResult expected = quire::test::oracle_attention(p);
      // Both are double precision: what fp32 may be off, times 2^-29.
      const double tolerance = quire::test::output_tolerance(d.scale()) * 0x1.0p-29;
      for (std::size_t i = 0; i < 32; ++i) {
        REQUIRE(std::fabs(out[row * d.q_row() + h * 32 + i] - expected.out[i]) <= tolerance);
      }
      REQUIRE(std::fabs(lse[std::size_t{row} * 6 + h] - expected.lse) <=
              quire::test::lse_tolerance(d.scale()) * 0x1.0p-29);
    }
  }
}

TEST_CASE("one token sees itself alone", "[smol][attention]") {
  quire::test::Rng rng(13);
  INFO(rng.describe());
  const Data d = make_data(rng, {3, 1, 16}, 1);
  Pool pool(1);
  std::vector<float> out(d.q.size());
  std::vector<float> decoded(d.q.size());
  prompt_attention(pool, d.shape, d.q.data(), d.k.data(), d.v.data(), 1, out.data(), nullptr);
  decode_attention(d.shape, d.q.data(), d.k.data(), d.v.data(), 1, decoded.data());
  for (std::size_t h = 0; h < 3; ++h) {
    for (std::size_t i = 0; i < 16; ++i) {
      CHECK(out[h * 16 + i] == d.v[i]);
      CHECK(decoded[h * 16 + i] == d.v[i]);
    }
  }
}

TEST_CASE("equal keys share evenly and huge logits stay finite", "[smol][attention]") {
  // With equal keys the weight of each of n is 1/n: out is the mean of 0 .. n - 1, n a power of 2.
  constexpr uint32_t kTokens = 256;
  Data d = {{1, 1, 16}, kTokens, {}, {}, {}};
  d.q.assign(kTokens * 16, 300.0f);
  d.k.assign(kTokens * 16, 300.0f);
  for (uint32_t t = 0; t < kTokens; ++t) d.v.insert(d.v.end(), 16, static_cast<float>(t));
  Pool pool(1);
  std::vector<float> out(d.q.size());
  std::vector<float> lse(kTokens);
  prompt_attention(
      pool, d.shape, d.q.data(), d.k.data(), d.v.data(), kTokens, out.data(), lse.data());
  for (uint32_t n = 1; n <= kTokens; n *= 2) {
    CHECK(out[(n - 1) * 16] == static_cast<float>(n - 1) / 2.0f);
    const double expected = 16.0 * 300.0 * 300.0 / 4.0 + std::log(static_cast<double>(n));
    CHECK(std::fabs(static_cast<double>(lse[n - 1]) - expected) <=
          quire::test::lse_tolerance(d.scale()));
  }
}

}  // namespace smol::test
