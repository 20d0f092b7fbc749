// Which kernel a call would run, and why another call would be refused.
#include <cstdio>

#include "src/args.hpp"
#include "src/cache.hpp"

namespace quire {
namespace {

// The checks of quire_attention that need no data.
Status check_attention(const quire_cache& all,
                       const CacheState& cache,
                       const quire_attention_args& a) {
  const std::uint32_t rows = a.rows == 0 ? 1 : a.rows;
  const CacheState* found = nullptr;
  std::uint32_t layer = 0;
  QUIRE_TRY(find_layer(all, a.layer, found, layer));
  if (rows > kMaxDecodeRows)
    return invalid("rows", "0 to 16; more rows by quire_extend", kMaxDecodeRows, rows);
  if (a.splits > cache.max.splits)
    return invalid("splits", "0, or up to max_splits", cache.max.splits, a.splits);
  if (a.score_rows != QUIRE_NONE && a.score_rows > rows)
    return invalid("score_rows", "up to rows, or QUIRE_NONE", rows, a.score_rows);
  if (a.lse_base_2 > 1) return invalid("lse_base_2", "0 or 1", 1, a.lse_base_2);
  for (const quire_rows* array : {&a.q, &a.out}) {
    if (array->dtype > QUIRE_BF16)  // 0: not said yet
      return invalid(array == &a.q ? "q" : "out",
                     "dtype is QUIRE_F32, QUIRE_F16 or QUIRE_BF16",
                     0,
                     array->dtype);
  }
  Parallel parallel;
  QUIRE_TRY(read_parallel(a.parallel, cache.max.threads, parallel));
  AttentionRule rule;
  return read_rule(a.rule, cache.group.dim_k, cache.group.q_heads, rule);
}

// A layer that is not there is answered for by the first group.
void explain(const quire_cache& all, const quire_attention_args& a, quire_explain_report& out) {
  const CacheState& cache = a.layer < all.layer_count ? all.at(all.layers[a.layer].group) : all;
  const Status status = check_attention(all, cache, a);
  out.supported = status.ok() ? 1 : 0;
  std::snprintf(out.kernel,
                sizeof(out.kernel),
                "%s decode, %s",
                cache.backend->name,
                cache.backend->target());
  if (status.ok()) {
    out.reason[0] = '\0';
  } else {
    std::snprintf(out.reason, sizeof(out.reason), "%s: %s", status.field, status.rule);
  }
  const TierLayout& high = cache.group.layout.tier[0];
  out.bytes_per_token = high.record_bytes - high.fields.bytes();
  // Read and write of the score, and 16 bits written and read per query head until the LSE is
  // known.
  out.score_bytes_per_token = high.fields.score ? 8 + 4 * std::uint64_t{cache.group.group} : 0;
  out.workspace_bytes = attend_workspace(cache.group, cache.max, *cache.backend);
}

}  // namespace
}  // namespace quire

extern "C" quire_status quire_explain(const quire_cache* cache,
                                      const quire_attention_args* args,
                                      quire_explain_report* report) {
  return quire::guarded(quire::error_of(args), [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_attention_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    quire_explain_report out;
    QUIRE_TRY(quire::read_args<quire_explain_report>(report, "report", 0xffffffffu, out));
    quire::explain(*cache, a, out);
    *report = out;
    return quire::ok_status();
  });
}
