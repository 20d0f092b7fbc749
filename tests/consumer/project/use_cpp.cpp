// A C++ program of a user: one prompt and one step through the C++ layer. All values are equal, so
// the output is that value.
#include <cmath>
#include <limits>
#include <quire/quire.hpp>
#include <vector>

namespace {

constexpr std::uint32_t kTokens = 80;
constexpr float kValue = 0.5f;

bool run(const quire::Cache& cache, const quire_policy& policy, std::vector<float>& out) {
  const std::vector<float> k(kTokens * 64, 0.25f);
  const std::vector<float> v(kTokens * 64, kValue);
  std::int32_t slot = -1;
  quire_prefill_layer_args prompt = QUIRE_PREFILL_LAYER_ARGS_INIT;
  quire_append_args append = QUIRE_APPEND_ARGS_INIT;
  quire_attention_args attention = QUIRE_ATTENTION_ARGS_INIT;
  if (!cache.open(policy, &slot).ok() || !cache.prefill_begin(slot, kTokens).ok()) return false;
  prompt.slot = slot;
  prompt.k = append.k = attention.q = prompt.q = quire::rows_of(k.data());
  prompt.v = append.v = quire::rows_of(v.data());
  prompt.q_rows = kTokens;
  attention.out = quire::rows_of(out.data());
  return cache.prefill_layer(prompt).ok() && cache.prefill_end(slot).ok() &&
         cache.step_begin(&slot, 1).ok() && cache.append(append).ok() &&
         cache.attention(attention).ok() && cache.step_end().ok() && cache.close(slot).ok();
}

}  // namespace

int main() {
  quire_policy policy = QUIRE_POLICY_INIT;
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
  if (quire_recipe_get(QUIRE_RECIPE_DIFFKV_UPSTREAM, &policy, &group, nullptr) != QUIRE_OK)
    return 1;
  group.layers = group.q_heads = group.kv_heads = 1;
  group.layout.head_dim_k = group.layout.head_dim_v = 64;
  desc.max_sequences = 1;
  desc.max_tokens = desc.pages = 2 * kTokens;
  desc.groups = &group;
  quire::Cache cache;
  std::vector<float> out(64);
  if (!quire::Cache::create(desc, &cache).ok() || !run(cache, policy, out)) return 2;
  for (const float x : out) {
    if (!(std::fabs(x - kValue) <= kTokens * std::numeric_limits<float>::epsilon())) return 3;
  }
  return 0;
}
