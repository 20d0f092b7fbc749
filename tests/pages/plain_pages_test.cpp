// quire_pages_take and quire_pages_return, the allocator without a cache. Oracle: a queue of ids,
// and copies of everything the caller owns taken before a call that must change nothing.
#include <deque>
#include <string>
#include <vector>

#include "quire/quire.h"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

// All that a caller of the plain allocator owns.
struct Owner {
  std::vector<std::int32_t> ids;
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::vector<std::uint32_t> counts;
  std::vector<std::int32_t> out;
  std::int64_t stride = 0;

  bool operator==(const Owner& o) const {
    return ids == o.ids && head == o.head && tail == o.tail && counts == o.counts && out == o.out;
  }

  quire_pages_args args(quire_error* error) {
    quire_pages_args a = QUIRE_PAGES_ARGS_INIT;
    a.ids = ids.data();
    a.capacity = ids.size();
    a.head = &head;
    a.tail = &tail;
    a.counts = counts.data();
    a.rows = counts.size();
    a.out = out.data();
    a.row_stride = stride;
    a.error = error;
    return a;
  }
};

Owner owner_of(std::uint64_t capacity, std::uint64_t start) {
  Owner o;
  o.ids.resize(capacity);
  for (std::uint64_t i = 0; i < capacity; ++i)
    o.ids[(start + i) % capacity] = static_cast<std::int32_t>(i);
  o.head = start;
  o.tail = start + capacity;
  return o;
}

TEST_CASE("the plain allocator walks like a queue near 2^63", "[pages][abi]") {
  test::Rng rng(21);
  INFO(rng.describe());
  Owner o = owner_of(57, (1ull << 63) - 300);
  std::deque<std::int32_t> model;
  for (std::int32_t i = 0; i < 57; ++i) model.push_back(i);
  std::vector<std::int32_t> live;
  std::uint32_t refused = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    quire_error error = QUIRE_ERROR_INIT;
    const std::uint32_t rows = rng.below(9);
    o.stride = 9;
    o.counts.assign(rows, 0);
    o.out.assign(rows * 9u, -1);
    std::uint64_t total = 0;
    for (std::uint32_t& c : o.counts) total += c = rng.below(10);
    Owner want = o;
    const bool fits = total <= model.size();
    for (std::uint32_t i = 0; fits && i < rows; ++i) {
      for (std::uint32_t j = 0; j < o.counts[i]; ++j) {
        want.out[i * 9u + j] = model.front();
        live.push_back(model.front());
        model.pop_front();
      }
    }
    if (fits) want.head += total;
    quire_pages_args take = o.args(&error);
    const quire_status status = quire_pages_take(&take);
    REQUIRE(status == (fits ? QUIRE_OK : QUIRE_OUT_OF_PAGES));
    REQUIRE(o == want);
    if (!fits) {
      ++refused;
      REQUIRE(error.needed == total);
      REQUIRE(error.given == model.size());
    }
    const std::uint32_t back = rng.below(static_cast<std::uint32_t>(live.size()) + 1);
    o.stride = static_cast<std::int64_t>(1 + rng.below(3));
    o.counts.assign(back, 0);
    o.out.assign(back * static_cast<std::size_t>(o.stride) + 1, 1 << 30);  // never looked at
    for (std::uint32_t i = 0; i < back; ++i) {
      o.out[i * static_cast<std::size_t>(o.stride)] = live[i];
      model.push_back(live[i]);
    }
    live.erase(live.begin(), live.begin() + back);
    quire_pages_args give = o.args(&error);
    REQUIRE(quire_pages_return(&give) == QUIRE_OK);
    REQUIRE(o.tail - o.head == model.size());
  }
  REQUIRE(refused > 100);
  REQUIRE(o.head > (1ull << 63));
}

// A call with one thing wrong: nothing but the error may change.
struct Wrong {
  const char* what;
  void (*spoil)(quire_pages_args& a, Owner& o);
  quire_status status;
  const char* field;
};

void require_refused(const Wrong& wrong, bool take) {
  INFO(wrong.what << (take ? ", take" : ", return"));
  Owner o = owner_of(8, 100);
  o.head += 5;  // five pages are live
  o.stride = 2;
  o.counts = {1, 0, 2};
  o.out = {3, 1, 4, 0, 2, 0};
  quire_error error = QUIRE_ERROR_INIT;
  quire_pages_args a = o.args(&error);
  wrong.spoil(a, o);
  const Owner before = o;
  REQUIRE((take ? quire_pages_take(&a) : quire_pages_return(&a)) == wrong.status);
  REQUIRE(o == before);
  REQUIRE(error.status == wrong.status);
  REQUIRE(std::string(error.field) == wrong.field);
}

TEST_CASE("wrong arguments of the plain allocator are refused with their name", "[pages][abi]") {
  using A = quire_pages_args;
  const Wrong both[] = {
      {"no ids", [](A& a, Owner&) { a.ids = nullptr; }, QUIRE_INVALID_ARGUMENT, "ids"},
      {"no head", [](A& a, Owner&) { a.head = nullptr; }, QUIRE_INVALID_ARGUMENT, "head"},
      {"no tail", [](A& a, Owner&) { a.tail = nullptr; }, QUIRE_INVALID_ARGUMENT, "tail"},
      {"no capacity", [](A& a, Owner&) { a.capacity = 0; }, QUIRE_INVALID_ARGUMENT, "capacity"},
      {"too large",
       [](A& a, Owner&) { a.capacity = 1ull << 31; },
       QUIRE_INVALID_ARGUMENT,
       "capacity"},
      {"head beyond tail",
       [](A&, Owner& o) { o.head = o.tail + 1; },
       QUIRE_INVALID_ARGUMENT,
       "tail"},
      {"more free than there are",
       [](A&, Owner& o) { o.tail = o.head + 9; },
       QUIRE_INVALID_ARGUMENT,
       "tail"},
      {"no out", [](A& a, Owner&) { a.out = nullptr; }, QUIRE_INVALID_ARGUMENT, "out"},
      {"flags", [](A& a, Owner&) { a.flags = 1; }, QUIRE_ABI_MISMATCH, "flags"},
  };
  for (const Wrong& wrong : both) {
    require_refused(wrong, true);
    require_refused(wrong, false);
  }
  require_refused(
      {"no counts", [](A& a, Owner&) { a.counts = nullptr; }, QUIRE_INVALID_ARGUMENT, "counts"},
      true);
  require_refused({"a count above the stride",
                   [](A&, Owner& o) { o.counts[1] = 3; },
                   QUIRE_INVALID_ARGUMENT,
                   "counts"},
                  true);
  require_refused({"a negative stride",
                   [](A& a, Owner&) { a.row_stride = -2; },
                   QUIRE_INVALID_ARGUMENT,
                   "counts"},
                  true);
  require_refused(
      {"one page too much", [](A&, Owner& o) { o.counts[1] = 1; }, QUIRE_OUT_OF_PAGES, "pages"},
      true);
  require_refused(
      {"a negative id", [](A&, Owner& o) { o.out[4] = -1; }, QUIRE_INVALID_ARGUMENT, "out"}, false);
  require_refused(
      {"an id of no page", [](A&, Owner& o) { o.out[2] = 8; }, QUIRE_INVALID_ARGUMENT, "out"},
      false);
  require_refused(
      {"more than are live", [](A&, Owner& o) { o.head -= 3; }, QUIRE_INVALID_ARGUMENT, "rows"},
      false);
}

TEST_CASE("a struct of another size is refused by the plain allocator", "[pages][abi]") {
  for (const bool take : {true, false}) {
    Owner o = owner_of(8, 0);
    o.counts = {1};
    o.out = {-1};
    o.stride = 1;
    quire_pages_args a = o.args(nullptr);
    a.struct_size -= 8;
    const Owner before = o;
    REQUIRE((take ? quire_pages_take(&a) : quire_pages_return(&a)) == QUIRE_ABI_MISMATCH);
    REQUIRE((take ? quire_pages_take(nullptr) : quire_pages_return(nullptr)) ==
            QUIRE_INVALID_ARGUMENT);
    REQUIRE(o == before);
  }
}

TEST_CASE("no rows are no pages and no error", "[pages][abi]") {
  Owner o = owner_of(3, 7);
  quire_pages_args a = o.args(nullptr);
  a.counts = nullptr;
  a.out = nullptr;
  const Owner before = o;
  REQUIRE(quire_pages_take(&a) == QUIRE_OK);
  REQUIRE(quire_pages_return(&a) == QUIRE_OK);
  REQUIRE(o == before);
}

}  // namespace
}  // namespace quire
