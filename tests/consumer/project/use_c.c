/* A C program of a user: the library that answers is the one whose header was seen, and works. */
#include <quire/quire.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  uint32_t abi = 0;
  quire_policy policy = QUIRE_POLICY_INIT;
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
  quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
  const uint32_t version =
      QUIRE_VERSION_MAJOR * 10000u + QUIRE_VERSION_MINOR * 100u + QUIRE_VERSION_PATCH;
  if (quire_version(&abi) != version || abi != QUIRE_ABI_VERSION) return 1;
  if (quire_recipe_get(QUIRE_RECIPE_QUIRE_BUDGET, &policy, &group, NULL) != QUIRE_OK) return 2;
  group.layers = group.q_heads = group.kv_heads = 1;
  group.layout.head_dim_k = group.layout.head_dim_v = 64;
  desc.groups = &group;
  desc.max_sequences = 1;
  desc.max_tokens = desc.pages = 100;
  if (quire_cache_sizes_get(&desc, &sizes) != QUIRE_OK || sizes.pages == 0) return 3;
  if (strcmp(quire_status_text(QUIRE_OK), "ok") != 0) return 4;
  printf("quire %u\n", (unsigned)version);
  return 0;
}
