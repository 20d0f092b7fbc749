// The report's curve: mean KL divergence (log scale) against bytes, as SVG.
#pragma once

#include <string>

#include "results.hpp"

namespace smol {

// Family of a setting by its name: which colour and which line it belongs to.
struct Family {
  const char* name;  // for the legend
  const char* css;   // class of its marks
  bool line;         // points are joined
};

const Family& family_of(const std::string& setting);

std::string plot_svg(const RunResult& run);

}  // namespace smol
