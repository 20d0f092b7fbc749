// Oracle: what the golden file must hold, counted by hand; it needs no model.
#include "golden.hpp"

#include "support/catch.hpp"

namespace smol::test {

TEST_CASE("the golden file is read whole", "[smol][golden]") {
  const std::vector<GoldenPrompt> prompts =
      read_golden(std::string(QUIRE_GOLDEN_DIR) + "/smollm2_reference.txt");
  REQUIRE(prompts.size() == 4);
  const std::size_t tokens[] = {14, 20, 40, 34};
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    INFO(i);
    CHECK(prompts[i].tokens.size() == tokens[i]);
    REQUIRE(prompts[i].top.size() == tokens[i]);
    for (const auto& row : prompts[i].top) CHECK(row.size() == 5);
    CHECK(prompts[i].first.size() == 2 * (9 + 3 + 3));
  }
  CHECK(prompts[1].text.back() == ' ');
  CHECK(prompts[2].text.find("\nint main") != std::string::npos);
  CHECK(prompts[0].first[0].values[3] == 0.3778);
}

}  // namespace smol::test
