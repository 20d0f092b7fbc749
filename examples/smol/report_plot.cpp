#include "report_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace smol {
namespace {

constexpr Family kFamilies[] = {
    {"uniform, affine", "f0", false},
    {"quire_uniform", "f1", true},
    {"diffkv, thresholds", "f2", false},
    {"diffkv_upstream, byte target", "f3", true},
    {"quire_budget", "f4", true},
    {"eviction, 16 bit", "f5", false},
};

constexpr double kWidth = 920.0;
constexpr double kHeight = 460.0;
constexpr double kLeft = 70.0;
constexpr double kRight = 20.0;
constexpr double kTop = 16.0;
constexpr double kBottom = 46.0;

struct Point {
  double x;
  double y;
  const SettingResult* setting;
};

struct Box {
  double x0, y0, x1, y1;

  bool meets(const Box& o) const { return x0 < o.x1 && o.x0 < x1 && y0 < o.y1 && o.y0 < y1; }
};

// Data ranges: share linear, KL in decades.
struct Axes {
  double x_min = 1.0;
  double x_max = 0.0;
  double y_min = 9.0;  // log10
  double y_max = -9.0;

  double px(double share) const {
    return kLeft + (share - x_min) / (x_max - x_min) * (kWidth - kLeft - kRight);
  }
  double py(double log_kl) const {
    return kTop + (y_max - log_kl) / (y_max - y_min) * (kHeight - kTop - kBottom);
  }
};

bool drawable(const SettingResult& s) { return s.kld_mean > 0.0 && s.fp16_bytes > 0.0; }

Axes make_axes(const RunResult& run) {
  Axes axes;
  for (const SettingResult& s : run.settings) {
    if (!drawable(s)) continue;
    axes.x_min = std::min(axes.x_min, s.share());
    axes.x_max = std::max(axes.x_max, s.share());
    axes.y_min = std::min(axes.y_min, std::log10(s.kld_mean));
    axes.y_max = std::max(axes.y_max, std::log10(s.kld_mean));
  }
  axes.x_min = std::floor(axes.x_min * 20.0 - 0.2) / 20.0;
  axes.x_max = std::ceil(axes.x_max * 20.0 + 0.2) / 20.0;
  axes.y_min = std::floor(axes.y_min * 2.0 - 0.2) / 2.0;
  axes.y_max = std::ceil(axes.y_max * 2.0 + 0.2) / 2.0;
  return axes;
}

std::string grid_svg(const Axes& axes) {
  std::string out;
  const double step = axes.x_max - axes.x_min > 0.5 ? 0.1 : 0.05;
  for (double x = axes.x_min; x < axes.x_max + 1e-9; x += step) {
    out += fmt::format("<line class='grid' x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2}'/>",
                       axes.px(x),
                       kTop,
                       kHeight - kBottom);
    out += fmt::format("<text class='tick' x='{:.1f}' y='{}' text-anchor='middle'>{:.2f}</text>",
                       axes.px(x),
                       kHeight - kBottom + 18,
                       x);
  }
  for (double decade = std::floor(axes.y_min); decade <= axes.y_max; decade += 1.0) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double y = decade + std::log10(factor);
      if (y < axes.y_min || y > axes.y_max) continue;
      out += fmt::format("<line class='grid' x1='{1}' x2='{2}' y1='{0:.1f}' y2='{0:.1f}'/>",
                         axes.py(y),
                         kLeft,
                         kWidth - kRight);
      out += fmt::format("<text class='tick' x='{}' y='{:.1f}' text-anchor='end'>{:g}</text>",
                         kLeft - 8,
                         axes.py(y) + 4,
                         factor * std::pow(10.0, decade));
    }
  }
  out += fmt::format(
      "<text class='axis' x='{}' y='{}' text-anchor='middle'>physical bytes, share of fp16</text>",
      (kLeft + kWidth - kRight) / 2,
      kHeight - 8);
  out += fmt::format(
      "<text class='axis' transform='translate(14 {}) rotate(-90)' text-anchor='middle'>mean KL "
      "divergence (nats)</text>",
      (kTop + kHeight - kBottom) / 2);
  return out;
}

std::string lines_svg(const std::vector<Point>& points) {
  std::string out;
  for (const Family& family : kFamilies) {
    if (!family.line) continue;
    std::vector<Point> mine;
    for (const Point& p : points) {
      if (&family_of(p.setting->name) == &family) mine.push_back(p);
    }
    if (mine.size() < 2) continue;
    std::sort(mine.begin(), mine.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
    out += fmt::format("<polyline class='line {}' points='", family.css);
    for (const Point& p : mine) out += fmt::format("{:.1f},{:.1f} ", p.x, p.y);
    out += "'/>";
  }
  return out;
}

struct Label {
  double x, y;
  const char* anchor;
  Box box;
};

// A label at a distance and direction from the point.
Label place_label(const Point& point, double angle, double distance) {
  const double width = 6.0 * static_cast<double>(point.setting->name.size());
  const double dx = distance * std::cos(angle);
  const double x = point.x + dx;
  const double y = point.y + distance * std::sin(angle) + 4.0;
  const bool right = dx > 2.0;
  const bool left = dx < -2.0;
  const double x0 = right ? x : (left ? x - width : x - width / 2);
  return {
      x, y, right ? "start" : (left ? "end" : "middle"), {x0 - 2, y - 10, x0 + width + 2, y + 3}};
}

bool is_free(const Label& label,
             const Point& point,
             const std::vector<Point>& points,
             const std::vector<Box>& taken) {
  const Box& box = label.box;
  bool free = box.x0 > kLeft && box.x1 < kWidth && box.y0 > 0 && box.y1 < kHeight - kBottom;
  for (const Box& other : taken) free = free && !box.meets(other);
  for (const Point& p : points) {
    const Box mark = {p.x - 5, p.y - 5, p.x + 5, p.y + 5};
    free = free && (p.setting == point.setting || !box.meets(mark));
  }
  return free;
}

// The nearest place around the point where the label meets no other label and no point; a thin line
// leads to it when it is not beside its point.
std::string label_svg(const Point& point,
                      const std::vector<Point>& points,
                      std::vector<Box>* taken) {
  constexpr double kTurn = 6.283185307179586;
  for (const double distance : {9.0, 16.0, 26.0, 40.0, 58.0}) {
    for (int step = 0; step < 12; ++step) {
      const Label label = place_label(point, kTurn * step / 12.0, distance);
      if (!is_free(label, point, points, *taken)) continue;
      taken->push_back(label.box);
      std::string out;
      if (distance > 16.0) {
        out = fmt::format("<line class='lead' x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}'/>",
                          point.x,
                          point.y,
                          label.x,
                          label.y - 4.0);
      }
      return out +
             fmt::format("<text class='label' x='{:.1f}' y='{:.1f}' text-anchor='{}'>{}</text>",
                         label.x,
                         label.y,
                         label.anchor,
                         point.setting->name);
    }
  }
  return "";  // the tooltip still names it
}

std::string legend_html(const std::vector<Point>& points) {
  std::string out = "<p class='legend'>";
  for (const Family& family : kFamilies) {
    const bool used = std::any_of(points.begin(), points.end(), [&](const Point& p) {
      return &family_of(p.setting->name) == &family;
    });
    if (used)
      out += fmt::format(
          "<span><svg width='12' height='12'><circle class='{}' cx='6' cy='6' r='5'/></svg> "
          "{}</span> ",
          family.css,
          family.name);
  }
  return out + "</p>";
}

}  // namespace

const Family& family_of(const std::string& setting) {
  const auto starts = [&](const char* prefix) { return setting.rfind(prefix, 0) == 0; };
  if (starts("quire_uniform")) return kFamilies[1];
  if (starts("quire_budget")) return kFamilies[4];
  if (starts("diffkv")) return setting.find('@') == std::string::npos ? kFamilies[2] : kFamilies[3];
  if (starts("snapkv") || starts("h2o") || starts("streaming_llm")) return kFamilies[5];
  return kFamilies[0];
}

std::string plot_svg(const RunResult& run) {
  const bool any = std::any_of(run.settings.begin(), run.settings.end(), drawable);
  if (!any) return "<p>Nothing to draw: no setting beside fp16.</p>";
  const Axes axes = make_axes(run);
  std::vector<Point> points;
  for (const SettingResult& s : run.settings) {
    if (drawable(s)) points.push_back({axes.px(s.share()), axes.py(std::log10(s.kld_mean)), &s});
  }
  std::string out = legend_html(points);
  out += fmt::format(
      "<svg class='plot' viewBox='0 0 {} {}' role='img' aria-label='KL divergence against bytes'>",
      kWidth,
      kHeight);
  out += grid_svg(axes) + lines_svg(points);
  for (const Point& p : points) {
    out += fmt::format(
        "<circle class='{}' cx='{:.1f}' cy='{:.1f}' r='5'><title>{}: share {:.4f}, mean KL "
        "{:.5f}</title></circle>",
        family_of(p.setting->name).css,
        p.x,
        p.y,
        p.setting->name,
        p.setting->share(),
        p.setting->kld_mean);
  }
  std::vector<Box> taken;
  for (const Point& p : points) out += label_svg(p, points, &taken);
  return out + "</svg>";
}

}  // namespace smol
