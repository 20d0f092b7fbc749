// Checks inside loops of millions: one REQUIRE at the end, and the first failing case in words.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

namespace quire::test {

class FirstFailure {
 public:
  // Counts one check; `parts` describe the case and are written out only for the first failure.
  template <class... PartsT>
  void check(bool ok, const PartsT&... parts) {
    ++checks_;
    if (ok || ++failures_ > 1) return;
    std::ostringstream out;
    out.precision(17);
    (out << ... << parts);
    first_ = out.str();
  }

  // True when there were checks and none failed.
  bool none() const { return checks_ > 0 && failures_ == 0; }
  std::uint64_t checks() const { return checks_; }
  std::string describe() const {
    return std::to_string(failures_) + " of " + std::to_string(checks_) +
           " checks failed; the first: " + first_;
  }

 private:
  std::uint64_t checks_ = 0;
  std::uint64_t failures_ = 0;
  std::string first_;
};

}  // namespace quire::test
