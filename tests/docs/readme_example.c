// [readme]
#include <quire/quire.h>
#include <stdio.h>

int main(void) { /* how many bytes does a token take? */
  quire_policy policy = QUIRE_POLICY_INIT;
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  quire_recipe_get(QUIRE_RECIPE_DIFFKV_UPSTREAM, &policy, &group, NULL); /* K8V4 above K4V2 */
  group.layout.head_dim_k = group.layout.head_dim_v = 128;
  quire_error error = QUIRE_ERROR_INIT;
  quire_layout layout = QUIRE_LAYOUT_INIT;
  group.layout.error = &error;
  if (quire_layout_make(&group.layout, &layout) != QUIRE_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  for (uint32_t t = 0; t < layout.tier_count; ++t)
    printf("tier %u: %u tokens in a page of %u bytes\n", (unsigned)t, (unsigned)layout.tier[t].tokens,
           (unsigned)layout.page_bytes);
  return 0;
}
// [readme]
