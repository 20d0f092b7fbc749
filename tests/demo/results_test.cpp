// Oracle: the shape of the JSON and the report as the demo's help describes them. JSON itself is
// parsed by command_line.py.
#include "results.hpp"

#include <cstdio>

#include "report_plot.hpp"
#include "support/catch.hpp"

namespace smol {
namespace {

RunResult sample() {
  RunResult run;
  run.model = "a \"model\" \\ name\n";
  run.text = "text<b>.txt";
  run.tokens = 8;
  run.prompt = 4;
  SettingResult fp16;
  fp16.name = "fp16";
  fp16.bytes = 1000.0;
  fp16.fp16_bytes = 1000.0;
  fp16.ppl = 4.5;
  fp16.tokens_per_second = 12.5;
  SettingResult other = fp16;
  other.name = "diffkv_upstream:1,0.02";
  other.bytes = 250.0;
  other.kld_mean = 0.01;
  other.tokens_per_second = 0.0;
  other.map = {1, 2, 8, {{0, 1, 1, 254, 254, 254, 255, 255}, {0, 0, 0, 0, 0, 0, 255, 255}}};
  run.settings = {fp16, other};
  return run;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("JSON escapes names and says null where speed was not measured", "[demo][results]") {
  const std::string json = json_text(sample());
  CHECK(has(json, "\"a \\\"model\\\" \\\\ name\\u000a\""));
  CHECK(has(json, "\"tokens_per_second\": 12.50"));
  CHECK(has(json, "\"tokens_per_second\": null"));
  CHECK(has(json, "\"share\": 0.250000"));
}

TEST_CASE("the table has a line per setting", "[demo][results]") {
  const std::string table = table_text(sample());
  CHECK(has(table, "\nfp16 "));
  CHECK(has(table, "\ndiffkv_upstream:1,0.02 "));
  CHECK(has(table, "0.2500"));
}

TEST_CASE("the report is one file with table, curve and map", "[demo][results]") {
  const std::string html = report_html(sample());
  CHECK(has(html, "<svg class='plot'"));
  CHECK(has(html, "h1l2d3r2;h6r2"));
  CHECK(has(html, "text&lt;b&gt;.txt"));
  CHECK_FALSE(has(html, "text<b>"));
  for (const char* outside : {"http:", "https:", "src=", "@import", "url("}) {
    INFO(outside);
    CHECK_FALSE(has(html, outside));
  }
}

TEST_CASE("a run of fp16 alone has nothing to draw and says so", "[demo][results]") {
  RunResult run = sample();
  run.settings.resize(1);
  CHECK(has(report_html(run), "Nothing to draw"));
  run.settings.clear();
  CHECK(has(report_html(run), "Nothing to draw"));
}

TEST_CASE("every setting belongs to a family of the plot", "[demo][results]") {
  CHECK(std::string(family_of("K8V4").css) == "f0");
  CHECK(std::string(family_of("quire_uniform:K4V3").css) == "f1");
  CHECK(std::string(family_of("diffkv_paper:1,0.02").css) == "f2");
  CHECK(std::string(family_of("diffkv_upstream:3,0.1@0.21").css) == "f3");
  CHECK(std::string(family_of("quire_budget:0.21").css) == "f4");
  CHECK(std::string(family_of("h2o@0.25").css) == "f5");
}

TEST_CASE("a file that cannot be written is named", "[demo][results][bad]") {
  CHECK(has(write_file("/nonexistent-folder/report.html", "x"), "/nonexistent-folder/report.html"));
}

}  // namespace
}  // namespace smol
