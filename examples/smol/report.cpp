// The HTML report: one file, no network, readable without a server.
#include <fmt/format.h>

#include "report_plot.hpp"
#include "results.hpp"

namespace smol {
namespace {

constexpr const char* kStyle = R"(<style>
:root { --ink: #1c2330; --soft: #5b6575; --line: #d9dee6; --back: #ffffff; --card: #f6f8fb;
  --c0: #6b7280; --c1: #1f77b4; --c2: #d98a00; --c3: #b3541e; --c4: #0b7a55; --c5: #8a4fbf;
  --high: #17375e; --low: #7fb3e6; --ring: #e58a1f; --drop: #eceff4; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p { max-width: 75ch; } .soft { color: var(--soft); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; width: 100%; }
th, td { padding: .22rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--ink); }
tbody tr:hover { background: var(--card); } td svg { vertical-align: -1px; margin-right: .4rem; }
.plot { width: 100%; height: auto; } .grid { stroke: var(--line); stroke-width: 1; }
.tick { font-size: 11px; fill: var(--soft); } .axis { font-size: 12.5px; fill: var(--ink); }
.label { font-size: 10.5px; fill: var(--ink); } .line { fill: none; stroke-width: 1.5; opacity: .6; }
.legend span { margin-right: 1.1rem; white-space: nowrap; }
circle.f0 { fill: var(--c0); } circle.f1 { fill: var(--c1); } circle.f2 { fill: var(--c2); }
circle.f3 { fill: var(--c3); } circle.f4 { fill: var(--c4); } circle.f5 { fill: var(--c5); }
.line.f1 { stroke: var(--c1); } .line.f3 { stroke: var(--c3); } .line.f4 { stroke: var(--c4); }
#map { width: 100%; border: 1px solid var(--line); display: block; cursor: crosshair; }
.maprow { display: flex; gap: .5rem; } .mapbox { flex: 1; min-width: 0; }
.layers { position: relative; width: 3.6rem; font-size: 10px; color: var(--soft); }
.layers span { position: absolute; right: 0; white-space: nowrap; transform: translateY(-10%); }
.ticks { display: flex; justify-content: space-between; font-size: 11px; color: var(--soft); }
.key, .legend { max-width: none; }
.key i { display: inline-block; width: .9em; height: .9em; vertical-align: -1px; margin: 0 .3em 0 1em;
  border: 1px solid var(--line); }
.lead { stroke: var(--soft); stroke-width: .6; }
select { font: inherit; padding: .15rem .4rem; }
</style>)";

constexpr const char* kMapScript = R"(<script>
(function () {
  var data = JSON.parse(document.getElementById('tiers').textContent);
  var canvas = document.getElementById('map'), pick = document.getElementById('pick');
  var info = document.getElementById('info'), css = getComputedStyle(document.documentElement);
  var colour = { h: '--high', l: '--low', r: '--ring', d: '--drop' };
  var name = { h: 'high tier', l: 'low tier', r: 'ring (16 or 8 bit)', d: 'dropped' };
  var rows = [];
  function decode(text) {
    return text.split(';').map(function (row) {
      var out = '', part = /([hlrd])(\d+)/g, m;
      while ((m = part.exec(row))) out += m[1].repeat(+m[2]);
      return out;
    });
  }
  function draw() {
    var map = data.maps[pick.value], scale = 6;
    rows = decode(map);
    canvas.width = data.tokens; canvas.height = rows.length * scale;
    var g = canvas.getContext('2d');
    rows.forEach(function (row, y) {
      for (var x = 0; x < row.length; ) {
        var end = x; while (end < row.length && row[end] === row[x]) end++;
        g.fillStyle = css.getPropertyValue(colour[row[x]]);
        g.fillRect(x, y * scale, end - x, scale - (y % data.heads === data.heads - 1 ? 1 : 0));
        x = end;
      }
    });
    canvas.style.height = Math.max(320, rows.length * 5) + 'px';
  }
  Object.keys(data.maps).forEach(function (key) {
    var option = document.createElement('option'); option.textContent = key; pick.appendChild(option);
  });
  if (data.maps[data.first]) pick.value = data.first;
  pick.onchange = draw;
  canvas.onmousemove = function (event) {
    var box = canvas.getBoundingClientRect();
    var x = Math.floor((event.clientX - box.left) / box.width * data.tokens);
    var y = Math.floor((event.clientY - box.top) / box.height * rows.length);
    if (!rows[y] || !rows[y][x]) return;
    info.textContent = 'layer ' + Math.floor(y / data.heads) + ', KV head ' + (y % data.heads) +
      ', position ' + x + ': ' + name[rows[y][x]];
  };
  draw();
})();
</script>)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string table_html(const RunResult& run) {
  std::string out =
      "<table><thead><tr><th>setting</th><th>bytes</th><th>share of fp16</th><th>mean KL</th>"
      "<th>p99 KL</th><th>same top</th><th>perplexity</th><th>cache ms/token</th>"
      "<th>tokens/s</th></tr></thead><tbody>";
  for (const SettingResult& s : run.settings) {
    const std::string speed =
        s.tokens_per_second > 0.0 ? fmt::format("{:.1f}", s.tokens_per_second) : "";
    out += fmt::format(
        "<tr><td><svg width='10' height='10'><circle class='{}' cx='5' cy='5' r='4'/></svg>{}</td>"
        "<td>{:.0f}</td><td>{:.4f}</td><td>{:.5f}</td><td>{:.4f}</td><td>{:.4f}</td><td>{:.4f}</td>"
        "<td>{:.3f}</td><td>{}</td></tr>",
        family_of(s.name).css,
        escaped(s.name),
        s.bytes,
        s.share(),
        s.kld_mean,
        s.kld_p99,
        s.same_top,
        s.ppl,
        s.cache_ms_per_token,
        speed);
  }
  return out + "</tbody></table>";
}

char tier_letter(uint8_t tier) {
  switch (tier) {
    case 0: return 'h';
    case 1: return 'l';
    case 255: return 'r';
    default: return 'd';
  }
}

// Rows joined by ';', each a list of letter and run length.
std::string run_lengths(const TierMap& map) {
  std::string out;
  for (const std::vector<uint8_t>& row : map.rows) {
    for (std::size_t i = 0; i < row.size();) {
      std::size_t end = i;
      while (end < row.size() && row[end] == row[i]) ++end;
      out += fmt::format("{}{}", tier_letter(row[i]), end - i);
      i = end;
    }
    out += ';';
  }
  if (!out.empty()) out.pop_back();
  return out;
}

// Maps worth a look: settings that treat tokens differently.
bool has_map(const SettingResult& s) { return !s.map.rows.empty(); }

std::string map_html(const RunResult& run) {
  const SettingResult* any = nullptr;
  std::string maps;
  std::string first;
  for (const SettingResult& s : run.settings) {
    if (!has_map(s)) continue;
    if (any == nullptr || s.name == "quire_budget:0.25") first = s.name;
    any = &s;
    maps += fmt::format("{}\"{}\":\"{}\"", maps.empty() ? "" : ",", s.name, run_lengths(s.map));
  }
  if (any == nullptr) return "";
  std::string out =
      "<h2>Which tokens each head keeps, and how precisely</h2>"
      "<p>At the end of the run. A row is a KV head, layers from top to bottom; the text runs from "
      "left to right. Move over the map to read it. The high tier is K8V4 and the low one K4V2 for "
      "DiffKV, K6V4 and K4V2 for quire_budget; evicting methods keep or drop 16-bit tokens. Only "
      "the "
      "last queries of the prompt score it (64 for DiffKV, 256 for quire_budget), and younger "
      "tokens "
      "have been seen by fewer: hence the edge that many tokens before the end of the prompt.</p>"
      "<p class='key'><select id='pick' aria-label='setting'></select> <span>"
      "<i style='background:var(--high)'></i>high tier<i style='background:var(--low)'></i>low tier"
      "<i style='background:var(--drop)'></i>dropped<i style='background:var(--ring)'></i>ring: "
      "sink and "
      "recent</span></p><div class='maprow'><div class='layers'>";
  const uint32_t every = any->map.layers > 12 ? 5 : 1;
  for (uint32_t layer = 0; layer < any->map.layers; layer += every) {
    const double top = 100.0 * layer / any->map.layers;
    out += fmt::format("<span style='top:{:.2f}%'>layer {}</span>", top, layer);
  }
  out += "</div><div class='mapbox'><canvas id='map'></canvas><div class='ticks'>";
  for (uint32_t k = 0; k <= 4; ++k) out += fmt::format("<span>{}</span>", any->map.tokens * k / 4);
  out += "</div></div></div><p id='info' class='soft'>point at the map</p>";
  out += fmt::format(
      "<script type='application/json' "
      "id='tiers'>{{\"tokens\":{},\"heads\":{},\"first\":\"{}\",\"maps\":{{{}}}}}</script>",
      any->map.tokens,
      any->map.heads,
      first,
      maps);
  return out + kMapScript;
}

}  // namespace

std::string report_html(const RunResult& run) {
  std::string out =
      "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
      "content='width=device-width, initial-scale=1'><title>quire: quality against bytes</title>";
  out += kStyle;
  out += "</head><body><h1>quire: what a small KV cache costs</h1>";
  out += fmt::format("<p class='soft'>Model {}, text {}, {} tokens, the first {} as prompt.</p>",
                     escaped(run.model),
                     escaped(run.text),
                     run.tokens,
                     run.prompt);
  out +=
      "<p>The prompt is attended to exactly and then compressed; the rest is decoded token by "
      "token through the cache. Every figure compares a setting with the same engine's 16-bit "
      "cache on the same tokens. Bytes are all that the sequence occupies (pages, recent ring, "
      "page tables, offset vectors), as means over the decode steps.</p>";
  out += "<h2>Quality against bytes</h2>" + plot_svg(run);
  out += "<h2>All figures</h2>" + table_html(run);
  out += map_html(run);
  return out + "</body></html>\n";
}

}  // namespace smol
