// The contract of src/backend.hpp on the CPU backend, with the best instruction set of this machine
// and with each of the others. Oracles: see the contract headers; the backend that comes next runs
// the same bodies.
#include <string>
#include <vector>

#include "contract/append_contract.hpp"
#include "contract/attention_contract.hpp"
#include "contract/drafts_contract.hpp"
#include "contract/merge_contract.hpp"
#include "contract/pages_contract.hpp"
#include "contract/tail_contract.hpp"
#include "hwy/targets.h"

namespace quire {
namespace {

// At most 16 entries (design, section 4).
static_assert(sizeof(Backend) <= 16 * sizeof(void (*)()));

TEST_CASE("attention equals the oracle on ragged batches", "[contract][attention]") {
  contract::attention_equals_oracle(cpu_backend());
}

TEST_CASE("attention obeys window, soft cap, ALiBi and sinks together", "[contract][attention]") {
  contract::attention_obeys_rules(cpu_backend());
}

TEST_CASE("attention that sees nothing gives zeros and leaves scores", "[contract][attention]") {
  contract::attention_of_nothing(cpu_backend());
}

TEST_CASE("attention adds to scores and writes nothing else into pages", "[contract][attention]") {
  contract::attention_adds_to_scores(cpu_backend());
}

TEST_CASE("attention leaves the least significant token of each tier", "[contract][attention]") {
  contract::attention_tracks_lowest(cpu_backend());
}

TEST_CASE("attention with fixed splits has the same bits on any workers", "[contract][attention]") {
  contract::fixed_splits_are_reproducible(cpu_backend());
}

TEST_CASE("attention with automatic splits is right on any workers", "[contract][attention]") {
  contract::automatic_splits_are_right(cpu_backend());
}

TEST_CASE("the largest attention call is right", "[contract][attention]") {
  contract::attention_at_its_limits(cpu_backend());
}

TEST_CASE("rows of a step see drafts as their tree says", "[contract][drafts]") {
  contract::attention_sees_drafts(cpu_backend());
}

TEST_CASE("append of an accepted draft moves and writes nothing new", "[contract][drafts]") {
  contract::append_of_what_is_stored(cpu_backend());
}

TEST_CASE("a prompt is written as the definition says", "[contract][pages]") {
  contract::write_prompt_equals_definition(cpu_backend());
}

TEST_CASE("saturated numbers of a prompt are counted", "[contract][pages]") {
  contract::write_prompt_counts_saturation(cpu_backend());
}

TEST_CASE("append moves the leaving token and the victims", "[contract][pages]") {
  contract::append_carries_out_victims(cpu_backend());
}

TEST_CASE("append without a token that leaves the ring", "[contract][pages]") {
  contract::append_without_leaving(cpu_backend());
}

TEST_CASE("append classifies every token again in a cadence step", "[contract][pages]") {
  contract::append_classifies_again(cpu_backend());
}

TEST_CASE("append takes the rows of its own head and sequence", "[contract][pages]") {
  contract::append_takes_its_own_rows(cpu_backend());
}

TEST_CASE("a later round moves tokens out of the ring and writes behind what is stored",
          "[contract][prompt]") {
  contract::write_prompt_in_two_rounds(cpu_backend());
}

TEST_CASE("the tail pass equals the dense oracle", "[contract][tail]") {
  contract::tail_equals_oracle(cpu_backend());
}

TEST_CASE("the tail pass reads a past as it is stored", "[contract][tail]") {
  contract::tail_reads_a_past(cpu_backend());
}

TEST_CASE("tail rows before the first token see nothing", "[contract][tail]") {
  contract::tail_rows_before_the_prompt(cpu_backend());
}

TEST_CASE("the tail pass gives the same bits on any workers", "[contract][tail]") {
  contract::tail_is_the_same_on_any_workers(cpu_backend());
}

TEST_CASE("a merge equals the oracle", "[contract][merge]") {
  contract::merge_equals_oracle(cpu_backend());
}

TEST_CASE("a merge of empty parts is empty", "[contract][merge]") {
  contract::merge_of_nothing(cpu_backend());
}

TEST_CASE("the first bad value is found wherever it is", "[contract][values]") {
  contract::bad_values_are_found(cpu_backend());
}

TEST_CASE("bad 16-bit values are found", "[contract][values]") {
  contract::bad_halves_are_found(cpu_backend());
}

TEST_CASE("the backend has a name and says what it runs on", "[contract][target]") {
  REQUIRE(cpu_backend().name == std::string("cpu"));
  REQUIRE(std::string(cpu_backend().target()) != "");
  REQUIRE(cpu_backend().target() == std::string(cpu_backend().target()));
}

// Restores the choice of the machine.
class OnlyTarget {
 public:
  explicit OnlyTarget(std::int64_t target) { choose(target); }
  ~OnlyTarget() { choose(0); }

 private:
  static void choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_CASE("attention is right on every instruction set of the machine", "[contract][target]") {
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  std::string names;
  for (const std::int64_t target : targets) {
    const OnlyTarget only(target);
    const std::string name = cpu_backend().target();
    REQUIRE(name == hwy::TargetName(target));
    REQUIRE(names.find("/" + name + "/") == std::string::npos);
    names += "/" + name + "/";
    INFO(name);
    contract::attention_equals_oracle(cpu_backend());
    contract::attention_obeys_rules(cpu_backend());
    contract::tail_equals_oracle(cpu_backend());
  }
}

}  // namespace
}  // namespace quire
