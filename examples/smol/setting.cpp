#include "setting.hpp"

#include <cstdlib>

namespace smol {
namespace {

struct ParsedName {
  std::string base;
  std::string arguments;  // between ':' and '@'
  double target = 0.0;    // behind '@'
};

bool parse_number(const std::string& text, double* value) {
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

std::string split_name(const std::string& name, ParsedName* out) {
  std::string rest = name;
  const std::size_t at = rest.find('@');
  if (at != std::string::npos) {
    if (!parse_number(rest.substr(at + 1), &out->target) || !(out->target > 0.0)) {
      return "'" + name + "': a share such as 0.25 belongs behind '@'";
    }
    rest.resize(at);
  }
  const std::size_t colon = rest.find(':');
  out->base = rest.substr(0, colon);
  if (colon != std::string::npos) out->arguments = rest.substr(colon + 1);
  return "";
}

// "K4V2" to its two widths; false when it is no such name.
bool parse_widths(const std::string& text, uint32_t* k, uint32_t* v) {
  if (text.size() != 4 || text[0] != 'K' || text[2] != 'V') return false;
  const auto width = [](char c) { return std::string("23468").find(c) != std::string::npos; };
  if (!width(text[1]) || !width(text[3])) return false;
  *k = static_cast<uint32_t>(text[1] - '0');
  *v = static_cast<uint32_t>(text[3] - '0');
  return true;
}

bool parse_pair(const std::string& text, float* first, float* second) {
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos) return false;
  double a = 0.0;
  double b = 0.0;
  if (!parse_number(text.substr(0, comma), &a) || !parse_number(text.substr(comma + 1), &b))
    return false;
  *first = static_cast<float>(a);
  *second = static_cast<float>(b);
  return true;
}

// 64 recent tokens in 16 bit and no sink, as DiffKV has it.
void plain_ring(Setting* s) {
  s->policy.sink_tokens = QUIRE_NONE;
  s->policy.recent_window = 64;
  s->group.sink_tokens = QUIRE_NONE;
  s->group.recent_window = 64;
  s->group.ring_format = QUIRE_RING_F16;
}

void take_recipe(uint32_t recipe, Setting* s) {
  (void)quire_recipe_get(recipe, &s->policy, &s->group, nullptr);
}

std::string uniform(const std::string& base, Setting* s) {
  take_recipe(QUIRE_RECIPE_KEEP_ALL, s);
  plain_ring(s);
  if (base == "fp16") {
    s->group.layout.tier[0].k = {QUIRE_GRID_F16, 16, 0, QUIRE_TRANSFORM_NONE};
    s->group.layout.tier[0].v = {QUIRE_GRID_F16, 16, 0, QUIRE_TRANSFORM_NONE};
    s->group.layout.flags = QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION;
    return "";
  }
  uint32_t k = 0;
  uint32_t v = 0;
  if (!parse_widths(base, &k, &v)) return "unknown setting";
  s->group.layout.tier[0].k = {QUIRE_GRID_AFFINE, k, 0, QUIRE_TRANSFORM_NONE};
  s->group.layout.tier[0].v = {QUIRE_GRID_AFFINE, v, 0, QUIRE_TRANSFORM_NONE};
  return "";
}

std::string quire_uniform(const std::string& arguments, Setting* s) {
  take_recipe(QUIRE_RECIPE_QUIRE_UNIFORM, s);
  uint32_t k = 4;
  uint32_t v = 3;
  if (!arguments.empty() && (!parse_widths(arguments, &k, &v) || k == 8 || v == 8)) {
    return "quire_uniform takes widths of 2, 3, 4 or 6 bits, such as quire_uniform:K4V3";
  }
  const auto grid = [](uint32_t bits) {
    return bits == 6 ? QUIRE_GRID_SYMMETRIC_UNIFORM : QUIRE_GRID_SYMMETRIC_TABLE;
  };
  s->group.layout.tier[0].k.grid = static_cast<uint32_t>(grid(k));
  s->group.layout.tier[0].k.bits = k;
  s->group.layout.tier[0].v.grid = static_cast<uint32_t>(grid(v));
  s->group.layout.tier[0].v.bits = v;
  return "";
}

std::string diffkv(uint32_t recipe, const ParsedName& name, Setting* s) {
  take_recipe(recipe, s);
  if (!name.arguments.empty() &&
      !parse_pair(name.arguments, &s->policy.alpha_high, &s->policy.alpha_low)) {
    return name.base + " takes two thresholds, such as " + name.base + ":1,0.02";
  }
  s->policy.byte_target = name.target;
  return "";
}

std::string evicting(uint32_t recipe, const ParsedName& name, Setting* s) {
  take_recipe(recipe, s);
  if (!(name.target > 0.0))
    return name.base + " takes a share of fp16, such as " + name.base + "@0.25";
  s->policy.budget_tokens = 0;
  s->policy.byte_target = name.target;
  return "";
}

std::string fill(const ParsedName& name, Setting* s) {
  if (name.base == "quire_uniform") return quire_uniform(name.arguments, s);
  if (name.base == "diffkv_paper") return diffkv(QUIRE_RECIPE_DIFFKV_PAPER, name, s);
  if (name.base == "diffkv_upstream") return diffkv(QUIRE_RECIPE_DIFFKV_UPSTREAM, name, s);
  if (name.base == "snapkv") return evicting(QUIRE_RECIPE_SNAPKV, name, s);
  if (name.base == "h2o") return evicting(QUIRE_RECIPE_H2O, name, s);
  if (name.base == "streaming_llm") return evicting(QUIRE_RECIPE_STREAMING_LLM, name, s);
  if (name.base == "quire_budget") {
    take_recipe(QUIRE_RECIPE_QUIRE_BUDGET, s);
    const bool given = parse_number(name.arguments, &s->policy.byte_target) &&
                       s->policy.byte_target > 0.0 && s->policy.byte_target <= 1.5;
    return given ? ""
                 : "quire_budget takes a share of fp16 above 0 and up to 1.5, such as "
                   "quire_budget:0.21";
  }
  if (name.target > 0.0 || !name.arguments.empty()) return "unknown setting";
  return uniform(name.base, s);
}

}  // namespace

std::string parse_setting(const std::string& name, const CacheShape& shape, Setting* out) {
  const quire_group_desc empty = QUIRE_GROUP_DESC_INIT;
  Setting s;
  s.name = name;
  s.group = empty;
  ParsedName parsed;
  std::string problem = split_name(name, &parsed);
  if (problem.empty()) problem = fill(parsed, &s);
  if (!problem.empty())
    return problem == "unknown setting" ? "'" + name + "' is no setting; see --help" : problem;
  s.group.layers = shape.layers;
  s.group.q_heads = shape.q_heads;
  s.group.kv_heads = shape.kv_heads;
  s.group.transform_seed = 1;
  s.group.layout.head_dim_k = shape.head_dim;
  s.group.layout.head_dim_v = shape.head_dim;
  s.group.layout.expected_tokens = shape.expected_tokens;
  *out = s;
  return "";
}

std::vector<std::string> default_settings() {
  std::vector<std::string> names = {"fp16", "K8V8", "K8V4", "K4V8", "K4V4", "K4V2"};
  for (const char* widths : {"K4V2", "K4V3", "K4V4"})
    names.push_back(std::string("quire_uniform:") + widths);
  for (const char* version : {"diffkv_paper", "diffkv_upstream"}) {
    for (const char* alphas : {"1,0.02", "3,0.1", "0.5,0.05"})
      names.push_back(std::string(version) + ":" + alphas);
  }
  for (const char* share : {"0.21", "0.25", "0.29"})
    names.push_back(std::string("diffkv_upstream:3,0.1@") + share);
  for (const char* share : {"0.21", "0.25", "0.29"})
    names.push_back(std::string("quire_budget:") + share);
  for (const char* method : {"snapkv", "h2o", "streaming_llm"})
    names.push_back(std::string(method) + "@0.25");
  return names;
}

}  // namespace smol
