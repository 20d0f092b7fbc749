// Description to sizes to cache: the only place that knows how the regions are divided.
#include <algorithm>
#include <bitset>
#include <new>

#include "src/args.hpp"
#include "src/cache.hpp"

namespace quire {
namespace {

Status resolve_ring(const quire_group_desc& desc, Group& group) {
  group.sinks = desc.sink_tokens == QUIRE_NONE ? 0 : (desc.sink_tokens == 0 ? 1 : desc.sink_tokens);
  group.window =
      desc.recent_window == QUIRE_NONE ? 0 : (desc.recent_window == 0 ? 64 : desc.recent_window);
  group.max_draft = desc.max_draft;
  if (group.sinks > 4096)
    return invalid("sink_tokens", "0 to 4096, or QUIRE_NONE", 4096, group.sinks);
  if (group.window > 65536)
    return invalid("recent_window", "0 to 65536, or QUIRE_NONE", 65536, group.window);
  if (group.max_draft > 1024) return invalid("max_draft", "0 to 1024", 1024, group.max_draft);
  const Format& high = group.layout.tier[0].format;
  VectorFormat k = {Grid::kF16, 16, 0, high.k.transform};
  VectorFormat v = {Grid::kF16, 16, 0, high.v.transform};
  switch (desc.ring_format) {
    case 0:
    case QUIRE_RING_F16: break;
    case QUIRE_RING_BF16: k.grid = v.grid = Grid::kBf16; break;
    case QUIRE_RING_K8V8:
      k.grid = v.grid = Grid::kAffine;
      k.bits = v.bits = 8;
      break;
    case QUIRE_RING_HIGH:
      k = high.k;
      v = high.v;
      break;
    default: return invalid("ring_format", "a quire_ring_format from 0 to 4", 4, desc.ring_format);
  }
  const std::uint32_t slots = group.sinks + group.window + group.max_draft;
  group.ring = ring_layout({k, v}, group.dim_k, group.dim_v, group.layout.tier[0].fields, slots);
  return ok_status();
}

Status resolve_group(const quire_group_desc& desc, Group& group) {
  const quire_layout_desc& layout = desc.layout;
  QUIRE_TRY(check_embedded(layout));
  if (desc.layers < 1 || desc.layers > 1024)
    return invalid("layers", "1 to 1024", 1024, desc.layers);
  if (desc.kv_heads < 1 || desc.kv_heads > 1024)
    return invalid("kv_heads", "1 to 1024", 1024, desc.kv_heads);
  if (desc.q_heads < desc.kv_heads || desc.q_heads % desc.kv_heads != 0 ||
      desc.q_heads / desc.kv_heads > kMaxQueryGroup) {
    return invalid("q_heads", "1 to 64 times kv_heads", desc.kv_heads, desc.q_heads);
  }
  group.layers = desc.layers;
  group.kv_heads = desc.kv_heads;
  group.q_heads = desc.q_heads;
  group.group = desc.q_heads / desc.kv_heads;
  group.dim_k = layout.head_dim_k;
  group.dim_v = layout.head_dim_v;
  group.seed = desc.transform_seed;
  if (desc.sliding_window > static_cast<std::uint32_t>(kMaxPosition))
    return invalid("sliding_window", "0 to 16777215", kMaxPosition, desc.sliding_window);
  group.sliding_window = desc.sliding_window;
  PageLayoutSpec spec;
  QUIRE_TRY(to_layout_spec(layout, spec));
  const Expected<PageLayout> made = page_layout(spec);
  if (!made.ok()) return made.status();
  group.layout = made.value();
  QUIRE_TRY(check_implied_positions(group.layout));
  if (spec.tier_count == 2 &&
      group.layout.tier[1].record_bytes > group.layout.tier[0].record_bytes) {
    return invalid("tier",
                   "a low tier that is not larger than the high one",
                   group.layout.tier[0].record_bytes,
                   group.layout.tier[1].record_bytes);
  }
  group.page_stride =
      desc.page_stride == 0 ? static_cast<std::int64_t>(group.layout.page_bytes) : desc.page_stride;
  if (group.page_stride < static_cast<std::int64_t>(group.layout.page_bytes) ||
      group.page_stride % kMetaAlign != 0) {
    return invalid("page_stride",
                   "0, or a multiple of 64 not below page_bytes",
                   group.layout.page_bytes,
                   static_cast<std::uint64_t>(desc.page_stride));
  }
  return resolve_ring(desc, group);
}

// Hands out the regions in order; with null regions it only counts.
struct Carver {
  Arena host;
  Arena tables;
};

void carve(const Group& group, const Maxima& max, Carver& carver, CacheState* cache) {
  const std::uint64_t rows = max.rows(group);
  Slot* slots = carver.host.take<Slot>(max.sequences);
  StepSlot* step_slots = carver.host.take<StepSlot>(max.batch);
  auto* appended = carver.host.take<std::uint8_t>(group.layers);
  auto* scored = carver.host.take<std::uint8_t>(group.layers);
  auto* free_pages = carver.tables.take<std::int32_t>(max.pages);
  auto* holders = carver.tables.take<std::uint32_t>(max.sharing ? max.pages : 0);
  auto* free_chunks = carver.tables.take<std::int32_t>(max.chunks);
  auto* chunks = carver.tables.take<std::int32_t>(max.chunks * kChunkPages);
  auto* directories = carver.tables.take<std::int32_t>(rows * max.directory_length);
  auto* head_states = carver.tables.take<HeadState>(rows);
  auto* plans = carver.tables.take<HeadPlan>(max.batch * group.heads());
  if (cache == nullptr) return;
  cache->slots = slots;
  cache->step.slots = step_slots;
  cache->step.appended = appended;
  cache->step.scored = scored;
  cache->step.plans = plans;
  cache->free_pages = make_free_list(free_pages, max.pages);
  cache->page_holders = max.sharing ? holders : nullptr;
  cache->table.free_chunks = make_free_list(free_chunks, max.chunks);
  cache->table.chunks = chunks;
  cache->table.directories = directories;
  cache->table.directory_length = max.directory_length;
  cache->head_states = head_states;
  for (std::uint32_t i = 0; i < max.sequences; ++i) new (&slots[i]) Slot();
  for (std::uint64_t i = 0; i < rows * max.directory_length; ++i) directories[i] = -1;
  for (std::uint64_t i = 0; i < rows; ++i) {
    head_states[i] = HeadState{};
    head_states[i].lowest_length = -1;
  }
}

struct RegionCheck {
  const char* name;
  const void* data;
  std::uint64_t given;
  std::uint64_t needed;
};

Status check_region(const RegionCheck& region) {
  if (region.needed == 0) return ok_status();
  if (region.data == nullptr) return invalid(region.name, "not NULL", region.needed, 0);
  if (reinterpret_cast<std::uintptr_t>(region.data) % kRegionAlign != 0) {
    return fail(StatusCode::kMisaligned,
                region.name,
                "memory aligned to 128 bytes",
                kRegionAlign,
                reinterpret_cast<std::uintptr_t>(region.data) % kRegionAlign);
  }
  if (region.given >= region.needed) return ok_status();
  return fail(StatusCode::kMemoryTooSmall,
              region.name,
              "bytes as quire_cache_sizes_get says",
              region.needed,
              region.given);
}

Status resolve_maxima(const quire_cache_desc& desc,
                      std::uint64_t pages,
                      const Group& group,
                      Maxima& max) {
  if (pages < 1 || pages > 0x7fffffffu) return invalid("pages", "1 to 2^31 - 1", 1, pages);
  const auto most = std::uint64_t{1} << 62;  // bytes of all pages
  if (static_cast<std::uint64_t>(group.page_stride) > most / pages) {
    return invalid("page_stride",
                   "0, or a multiple of 64 not below page_bytes, all pages within 2^62 bytes",
                   group.layout.page_bytes,
                   static_cast<std::uint64_t>(group.page_stride));
  }
  max.sequences = desc.max_sequences;
  max.batch = desc.max_batch == 0 ? desc.max_sequences : desc.max_batch;
  max.tokens = desc.max_tokens;
  max.threads = desc.threads == 0 ? 1 : desc.threads;
  max.splits = desc.max_splits == 0 ? 1 : desc.max_splits;
  max.pages = pages;
  max.saturate = (desc.flags & QUIRE_CACHE_SATURATE) != 0;
  max.sharing = (desc.flags & QUIRE_CACHE_SHARING) != 0;
  // A full sequence in every tier: a cadence step takes pages of the low tier before it returns
  // those of the high one.
  std::uint64_t row_pages = 2;
  for (std::uint32_t t = 0; t < group.layout.tier_count; ++t) {
    row_pages +=
        ceil_div(std::uint64_t{max.tokens}, std::uint64_t{group.layout.tier[t].tokens}) + 1;
  }
  const std::uint64_t bounded = row_pages < max.pages + 2 ? row_pages : max.pages + 2;
  max.directory_length = static_cast<std::uint32_t>(ceil_div(bounded, std::uint64_t{kChunkPages}));
  // A shared page stands in several rows, so pages do not bound what rows hold.
  max.chunks = max.sharing ? max.rows(group) * max.directory_length
                           : chunk_bound(max.rows(group), max.pages);
  return ok_status();
}

Status check_limits(const quire_cache_desc& desc) {
  if (desc.group_count < 1 || desc.group_count > kMaxLayerGroups)
    return invalid("group_count", "1 to 8", kMaxLayerGroups, desc.group_count);
  if (desc.groups == nullptr) return invalid("groups", "not NULL");
  if (desc.max_sequences < 1 || desc.max_sequences > 65536) {
    return invalid("max_sequences", "1 to 65536", 65536, desc.max_sequences);
  }
  if (desc.max_batch > desc.max_sequences) {
    return invalid("max_batch", "0, or up to max_sequences", desc.max_sequences, desc.max_batch);
  }
  if (desc.max_tokens < 1 || desc.max_tokens > static_cast<std::uint32_t>(kMaxPosition)) {
    return invalid("max_tokens", "1 to 16777215", kMaxPosition, desc.max_tokens);
  }
  if (desc.threads > 1024) return invalid("threads", "0 to 1024", 1024, desc.threads);
  if (desc.max_splits > kMaxSplits)
    return invalid("max_splits", "0 to 64", kMaxSplits, desc.max_splits);
  return ok_status();
}

// A cache before it has memory.
struct CacheShape {
  std::uint32_t count = 0;
  std::uint32_t layers = 0;
  Group group[kMaxLayerGroups];
  Maxima max[kMaxLayerGroups];
  const std::uint32_t* layer_ids[kMaxLayerGroups] = {};  // of the caller

  // The number of a layer in calls.
  std::uint32_t layer_id(std::uint32_t index, std::uint32_t layer) const {
    if (layer_ids[index] != nullptr) return layer_ids[index][layer];
    for (std::uint32_t g = 0; g < index; ++g) layer += group[g].layers;
    return layer;
  }
};

Status check_layer_ids(const CacheShape& shape) {
  std::bitset<kMaxLayerGroups * 1024> taken;
  for (std::uint32_t g = 0; g < shape.count; ++g) {
    for (std::uint32_t layer = 0; layer < shape.group[g].layers; ++layer) {
      const std::uint32_t id = shape.layer_id(g, layer);
      if (id >= shape.layers || taken[id])
        return invalid(
            "layer_ids", "each of 0 to the layers of all groups, once", shape.layers, id);
      taken[id] = true;
    }
  }
  return ok_status();
}

// Resolves and checks a description.
Status resolve(const quire_cache_desc& desc, CacheShape& shape) {
  QUIRE_TRY(check_limits(desc));
  const auto* at = reinterpret_cast<const unsigned char*>(desc.groups);
  for (; shape.count < desc.group_count; ++shape.count) {
    quire_group_desc group;
    QUIRE_TRY(read_args(reinterpret_cast<const quire_group_desc*>(at), "groups", 0, group));
    QUIRE_TRY(resolve_group(group, shape.group[shape.count]));
    QUIRE_TRY(resolve_maxima(desc,
                             group.pages == 0 ? desc.pages : group.pages,
                             shape.group[shape.count],
                             shape.max[shape.count]));
    shape.layer_ids[shape.count] = group.layer_ids;
    shape.layers += group.layers;
    at += group.struct_size;
  }
  return check_layer_ids(shape);
}

std::uint64_t pool_bytes(const Group& group, const Maxima& max) {
  return (max.pages - 1) * static_cast<std::uint64_t>(group.page_stride) + group.layout.page_bytes;
}

std::uint64_t aligned(std::uint64_t bytes) { return round_up(bytes, std::uint64_t{kRegionAlign}); }

// Host memory of the cache itself and of all groups, tables of all groups, in one order.
quire_cache* carve_cache(const CacheShape& shape, Carver& carver) {
  auto* cache = carver.host.take<quire_cache>(1);
  auto* others = carver.host.take<CacheState>(shape.count - 1);
  auto* layers = carver.host.take<quire_layer_place>(shape.layers);
  if (cache != nullptr) {
    cache = new (cache) quire_cache();
    cache->group_count = shape.count;
    cache->layer_count = shape.layers;
    cache->others = others;
    cache->layers = layers;
    for (std::uint32_t g = 1; g < shape.count; ++g) new (&others[g - 1]) CacheState();
  }
  for (std::uint32_t g = 0; g < shape.count; ++g) {
    CacheState* state = cache == nullptr ? nullptr : &cache->at(g);
    auto* ids = carver.host.take<std::uint32_t>(shape.group[g].layers);
    carve(shape.group[g], shape.max[g], carver, state);
    if (state == nullptr) continue;
    state->layer_ids = ids;
    for (std::uint32_t layer = 0; layer < shape.group[g].layers; ++layer) {
      ids[layer] = shape.layer_id(g, layer);
      layers[ids[layer]] = {g, layer};
    }
  }
  return cache;
}

// Bytes of the regions, in closed form.
void region_sizes(const CacheShape& shape, const Backend& backend, quire_cache_sizes* sizes) {
  Carver carver{Arena(Workspace{}), Arena(Workspace{})};
  carve_cache(shape, carver);
  sizes->alignment = kRegionAlign;
  sizes->host = carver.host.used();
  sizes->tables = carver.tables.used();
  sizes->pages = sizes->rings = sizes->workspace = 0;
  for (std::uint32_t g = 0; g < shape.count; ++g) {
    const Group& group = shape.group[g];
    sizes->pages = aligned(sizes->pages) + pool_bytes(group, shape.max[g]);
    sizes->rings = aligned(sizes->rings) + shape.max[g].rows(group) * group.ring.bytes;
    sizes->workspace = std::max(sizes->workspace, workspace_bytes(group, shape.max[g], backend));
  }
  sizes->page_bytes = shape.group[0].layout.page_bytes;
  sizes->ring_block_bytes = shape.group[0].ring.bytes;
}

Status check_memory(const quire_cache_memory& m, const quire_cache_sizes& sizes) {
  QUIRE_TRY(check_region({"host", m.host, m.host_bytes, sizes.host}));
  QUIRE_TRY(check_region({"pages", m.pages, m.pages_bytes, sizes.pages}));
  QUIRE_TRY(check_region({"rings", m.rings, m.rings_bytes, sizes.rings}));
  QUIRE_TRY(check_region({"tables", m.tables, m.tables_bytes, sizes.tables}));
  return check_region({"workspace", m.workspace, m.workspace_bytes, sizes.workspace});
}

quire_cache* build(const CacheShape& shape, const quire_cache_memory& m) {
  Carver carver{Arena({static_cast<std::uint8_t*>(m.host), m.host_bytes}),
                Arena({static_cast<std::uint8_t*>(m.tables), m.tables_bytes})};
  quire_cache* cache = carve_cache(shape, carver);
  auto* pages = static_cast<std::uint8_t*>(m.pages);
  auto* rings = static_cast<std::uint8_t*>(m.rings);
  for (std::uint32_t g = 0; g < shape.count; ++g) {
    CacheState& state = cache->at(g);
    state.group = shape.group[g];
    state.max = shape.max[g];
    state.backend = &cpu_backend();
    state.rings = rings;
    state.space = {pages, state.group.page_stride, 0};
    state.workspace = {static_cast<std::uint8_t*>(m.workspace), m.workspace_bytes};
    pages += aligned(pool_bytes(state.group, state.max));
    rings += aligned(state.max.rows(state.group) * state.group.ring.bytes);
  }
  return cache;
}

}  // namespace
}  // namespace quire

using quire::Status;

extern "C" quire_status quire_cache_sizes_get(const quire_cache_desc* desc,
                                              quire_cache_sizes* sizes) {
  return quire::guarded(quire::error_of(desc), [&]() -> Status {
    quire_cache_desc d;
    QUIRE_TRY(quire::read_args(desc, "desc", QUIRE_CACHE_SATURATE | QUIRE_CACHE_SHARING, d));
    quire_cache_sizes out;
    QUIRE_TRY(quire::read_args<quire_cache_sizes>(sizes, "sizes", 0xffffffffu, out));
    quire::CacheShape shape;
    QUIRE_TRY(quire::resolve(d, shape));
    quire::region_sizes(shape, quire::cpu_backend(), &out);
    *sizes = out;
    return quire::ok_status();
  });
}

extern "C" quire_status quire_cache_create(const quire_cache_desc* desc,
                                           const quire_cache_memory* memory,
                                           quire_cache** cache) {
  return quire::guarded(quire::error_of(desc), [&]() -> Status {
    quire_cache_desc d;
    QUIRE_TRY(quire::read_args(desc, "desc", QUIRE_CACHE_SATURATE | QUIRE_CACHE_SHARING, d));
    quire_cache_memory m;
    QUIRE_TRY(quire::read_args(memory, "memory", 0, m));
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire::CacheShape shape;
    QUIRE_TRY(quire::resolve(d, shape));
    quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
    quire::region_sizes(shape, quire::cpu_backend(), &sizes);
    QUIRE_TRY(quire::check_memory(m, sizes));
    *cache = quire::build(shape, m);
    return quire::ok_status();
  });
}

extern "C" void quire_cache_destroy(quire_cache* cache) {
  if (cache == nullptr) return;
  for (std::uint32_t g = 1; g < cache->group_count; ++g) cache->others[g - 1].~CacheState();
  cache->~quire_cache();
}
