// [readme]
#include <quire/quire.hpp>
#include <vector>

int main() {  // a prompt of 100 tokens, then one step: 1 layer, 4 query heads, 2 KV heads, D = 64
  quire_policy policy;
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  quire_recipe_get(QUIRE_RECIPE_QUIRE_BUDGET, &policy, &group);
  group.layers = 1, group.q_heads = 4, group.kv_heads = 2;
  group.layout.head_dim_k = group.layout.head_dim_v = 64;
  quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
  desc.max_sequences = 1, desc.max_tokens = 4096, desc.pages = 1000, desc.groups = &group;
  std::vector<float> kv(100 * 2 * 64, 0.5f), q(100 * 4 * 64, 0.1f), out(4 * 64);
  quire::Cache cache;
  int32_t slot = 0;
  if (!quire::Cache::create(desc, &cache).ok() || !cache.open(policy, &slot).ok()) return 1;
  quire_prefill_layer_args prompt = QUIRE_PREFILL_LAYER_ARGS_INIT;
  prompt.slot = slot, prompt.q_rows = 100, prompt.q = quire::rows_of(q.data());
  prompt.k = prompt.v = quire::rows_of(kv.data());
  quire_append_args append = QUIRE_APPEND_ARGS_INIT;
  append.k = append.v = quire::rows_of(kv.data());
  quire_attention_args attention = QUIRE_ATTENTION_ARGS_INIT;
  attention.q = quire::rows_of(q.data()), attention.out = quire::rows_of(out.data());
  const bool ok = cache.prefill_begin(slot, 100).ok() && cache.prefill_layer(prompt).ok() &&
                  cache.prefill_end(slot).ok() && cache.step_begin(&slot, 1).ok() &&
                  cache.append(append).ok() && cache.attention(attention).ok() && cache.step_end().ok();
  return ok ? 0 : 1;
}
// [readme]
