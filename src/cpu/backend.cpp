#include "src/backend.hpp"
#include "src/cpu/attention/decode.hpp"
#include "src/cpu/attention/merge.hpp"
#include "src/cpu/attention/tail.hpp"
#include "src/cpu/check_values.hpp"
#include "src/cpu/pages/write.hpp"

namespace quire {

const Backend& cpu_backend() {
  static constexpr Backend kBackend = {
      "cpu",
      cpu::target_name,
      cpu::attention_workspace,
      cpu::attention,
      cpu::tail_workspace,
      cpu::tail_scores,
      cpu::write_prompt,
      cpu::append,
      cpu::merge,
      cpu::find_bad_value,
  };
  return kBackend;
}

}  // namespace quire
