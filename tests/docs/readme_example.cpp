// [readme]
#include <quire/quire.hpp>
#include <vector>

int main() {  // a prompt of 100 tokens, then one step: 1 layer, 4 query heads, 2 KV heads, D = 64
  quire_policy policy = QUIRE_POLICY_INIT;
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  quire_recipe_get(QUIRE_RECIPE_QUIRE_UNIFORM, &policy, &group, nullptr);  // K4V3 with rotation
  group.layers = 1, group.q_heads = 4, group.kv_heads = 2;
  group.layout.head_dim_k = group.layout.head_dim_v = 64;
  quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
  desc.max_sequences = 1, desc.max_tokens = 4096, desc.pages = 1000, desc.groups = &group;
  std::vector<float> k(100 * 2 * 64, 0.5f), v(k), q(4 * 64, 0.1f), out(4 * 64);
  const quire_rows k_rows = quire::rows_of(k.data()), v_rows = quire::rows_of(v.data());
  quire::Cache cache;
  int32_t slot = 0;
  const bool ok = quire::Cache::create(desc, &cache).ok() && cache.open(policy, &slot).ok() &&
                  cache.prefill_begin(slot, 100).ok() &&
                  cache.prefill_layer(slot, 0, k_rows, v_rows).ok() && cache.prefill_end(slot).ok() &&
                  cache.step_begin(&slot, 1).ok() && cache.append(0, k_rows, v_rows).ok() &&
                  cache.attention(0, quire::rows_of(q.data()), quire::rows_of(out.data())).ok();
  return ok && cache.step_end().ok() ? 0 : 1;
}
// [readme]
