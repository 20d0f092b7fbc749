// Recipes by number: the policy, and the formats and ring that it was measured with.
#include "quire/policy/recipes.hpp"

#include "src/args.hpp"

namespace quire {
namespace {

quire_vector_format affine(std::uint32_t bits) {
  return {QUIRE_GRID_AFFINE, bits, 0, QUIRE_TRANSFORM_NONE};
}

quire_vector_format rotated(std::uint32_t bits, std::uint32_t more_transform) {
  const std::uint32_t grid = bits > 4 ? QUIRE_GRID_SYMMETRIC_UNIFORM : QUIRE_GRID_SYMMETRIC_TABLE;
  return {grid, bits, 0, QUIRE_TRANSFORM_HADAMARD | more_transform};
}

// K with the mean key subtracted, V without (the offset makes V worse: the tokens that get the most
// attention have small values).
quire_format own_tier(std::uint32_t k_bits, std::uint32_t v_bits) {
  return {rotated(k_bits, QUIRE_TRANSFORM_OFFSET), rotated(v_bits, 0)};
}

struct RecipeFormats {
  quire_format tier[2];
  std::uint32_t tier_count;
  std::uint32_t layout_flags;
  std::uint32_t ring_format;
};

RecipeFormats formats_of(Recipe recipe) {
  switch (recipe) {
    case Recipe::kDiffkvPaper:
    case Recipe::kDiffkvUpstream:
    case Recipe::kForeign:
      return {{{affine(8), affine(4)}, {affine(4), affine(2)}}, 2, 0, QUIRE_RING_F16};
    case Recipe::kStreamingLlm:
    case Recipe::kH2o:
    case Recipe::kSnapKv: {
      const quire_vector_format f16 = {QUIRE_GRID_F16, 16, 0, QUIRE_TRANSFORM_NONE};
      return {{{f16, f16}, {}}, 1, 0, QUIRE_RING_F16};
    }
    case Recipe::kQuireUniform:
      return {{own_tier(4, 3), {}},
              1,
              QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION,
              QUIRE_RING_K8V8};
    case Recipe::kQuireBudget: return {{own_tier(6, 4), own_tier(4, 2)}, 2, 0, QUIRE_RING_K8V8};
    default: return {{{affine(8), affine(4)}, {}}, 1, 0, QUIRE_RING_F16};
  }
}

Policy policy_of(Recipe recipe) {
  constexpr std::uint32_t kDefaultBudget = 1024;  // tokens per head, to be changed by the caller
  switch (recipe) {
    case Recipe::kDiffkvPaper: return diffkv_paper(1.0f, 0.02f);
    case Recipe::kDiffkvUpstream: return diffkv_upstream(1.0f, 0.02f);
    case Recipe::kStreamingLlm: return streaming_llm(kDefaultBudget);
    case Recipe::kH2o: return h2o(kDefaultBudget);
    case Recipe::kSnapKv: return snapkv(kDefaultBudget);
    case Recipe::kQuireUniform: return quire_uniform();
    case Recipe::kQuireBudget: return quire_budget(0.25);
    case Recipe::kForeign: return foreign_plan();
    default: return keep_all();
  }
}

}  // namespace
}  // namespace quire

extern "C" quire_status quire_recipe_get(uint32_t recipe,
                                         quire_policy* policy,
                                         quire_group_desc* group,
                                         quire_error* error) {
  return quire::guarded(error, [&]() -> quire::Status {
    if (recipe < QUIRE_RECIPE_KEEP_ALL || recipe > QUIRE_RECIPE_FOREIGN) {
      return quire::invalid(
          "recipe", "a quire_recipe_id from 1 to 9", QUIRE_RECIPE_FOREIGN, recipe);
    }
    quire_policy given;
    QUIRE_TRY(quire::read_args(policy, "policy", 0xffffffffu, given));
    if (group != nullptr && group->struct_size < sizeof(quire_group_desc)) {
      return quire::fail(quire::StatusCode::kAbiMismatch,
                         "struct_size",
                         "the size of this version's struct",
                         sizeof(quire_group_desc),
                         group->struct_size);
    }
    const auto id = static_cast<quire::Recipe>(recipe);
    quire::write_policy(quire::policy_of(id), policy);
    policy->struct_size = given.struct_size;
    if (group == nullptr) return quire::ok_status();
    const quire::RecipeFormats formats = quire::formats_of(id);
    group->layout.tier[0] = formats.tier[0];
    group->layout.tier[1] = formats.tier[1];
    group->layout.tier_count = formats.tier_count;
    group->layout.flags = formats.layout_flags;
    group->ring_format = formats.ring_format;
    group->sink_tokens = policy->sink_tokens;
    group->recent_window = policy->recent_window;
    return quire::ok_status();
  });
}
