// Oracle: the comments of quire_codec_args, quire_merge_args and quire_pages_args. A refused call
// writes nothing: all buffers are compared byte by byte.
#include <cmath>
#include <limits>

#include "support/bad_values.hpp"
#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kDim = 64;
constexpr std::uint32_t kCount = 5;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void* one_byte_on(void* data) { return static_cast<unsigned char*>(data) + 1; }

// Buffers for any format of kDim elements, and a count of saturated elements.
struct Codec {
  std::vector<float> rows;
  std::vector<float> offset = std::vector<float>(kDim, 0.25f);
  std::vector<std::uint8_t> codes[2];
  std::vector<std::uint16_t> meta;
  std::uint64_t saturated = 7;
  quire_error error = QUIRE_ERROR_INIT;

  explicit Codec(std::uint64_t seed = 71) {
    Rng rng(seed);
    rows = rng.normals(kCount * kDim);
    for (std::vector<std::uint8_t>& plane : codes) plane.assign(kCount * kDim * 2, 0xcd);
    meta.assign(kCount * 4, 0xcdcd);
  }

  quire_codec_args args(const quire_vector_format& format) {
    quire_codec_args a = QUIRE_CODEC_ARGS_INIT;
    a.format = format;
    a.head_dim = kDim;
    a.count = kCount;
    a.rows = {rows.data(), QUIRE_F32, 0, 0, 0, 0};
    a.offset = offset.data();
    a.codes[0] = codes[0].data();
    a.codes[1] = codes[1].data();
    a.meta = meta.data();
    a.saturated = &saturated;
    a.error = &error;
    return a;
  }

  bool operator==(const Codec& other) const {
    return std::memcmp(rows.data(), other.rows.data(), rows.size() * sizeof(float)) == 0 &&
           codes[0] == other.codes[0] && codes[1] == other.codes[1] && meta == other.meta &&
           saturated == other.saturated;
  }
};

using Args = quire_codec_args;
const quire_vector_format kSixBits = {QUIRE_GRID_AFFINE, 6, 32, QUIRE_TRANSFORM_OFFSET};

const Bad<Args> kBadCodec[] = {
    {"dim 0", [](Args& a) { a.head_dim = 0; }, {1, "head_dim", "16 to 256", -1, 0}},
    {"dim 72", [](Args& a) { a.head_dim = 72; }, {1, "head_dim", "multiple of 16", -1, 72}},
    {"dim 272", [](Args& a) { a.head_dim = 272; }, {1, "head_dim", "16 to 256", -1, 272}},
    {"grid 0", [](Args& a) { a.format.grid = 0; }, {1, "grid", "1 to 5", -1, 0}},
    {"5 bits", [](Args& a) { a.format.bits = 5; }, {1, "bits", "8, 6, 4, 3, 2", -1, 5}},
    {"group 48", [](Args& a) { a.format.group = 48; }, {1, "group", "32 or 64", -1, 48}},
    {"transform 8", [](Args& a) { a.format.transform = 8; }, {1, "transform", "", 3, 8}},
    {"no plane 0", [](Args& a) { a.codes[0] = nullptr; }, {1, "codes", "not NULL"}},
    {"no plane 1", [](Args& a) { a.codes[1] = nullptr; }, {1, "codes", "plane 1"}},
    {"no meta", [](Args& a) { a.meta = nullptr; }, {1, "meta", "not NULL"}},
    {"2^31 vectors", [](Args& a) { a.count = 1u << 31; }, {1, "count", "2^31", -1, 1ll << 31}},
    {"flags", [](Args& a) { a.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
    {"f16 codes between words",
     [](Args& a) {
       a.format = {QUIRE_GRID_F16, 16, 0, 0};
       a.codes[0] = static_cast<std::uint8_t*>(one_byte_on(a.codes[0]));
     },
     {QUIRE_MISALIGNED, "codes", "2 bytes", 2}},
};

const Bad<Args> kBadRows[] = {
    {"no rows", [](Args& a) { a.rows.data = nullptr; }, {1, "rows", "not NULL"}},
    {"dtype 0", [](Args& a) { a.rows.dtype = 0; }, {1, "rows", "QUIRE_F32", -1, 0}},
    {"rows between floats",
     [](Args& a) { a.rows.data = one_byte_on(a.rows.data); },
     {QUIRE_MISALIGNED, "rows", "aligned", 4, 1}},
};

template <std::size_t kSize>
void refuse_codec(const Bad<Args> (&table)[kSize], quire_status (*call)(const Args*)) {
  for (const Bad<Args>& bad : table) {
    INFO(bad.what);
    Codec codec;
    const Codec before = codec;
    Args args = codec.args(kSixBits);
    bad.spoil(args);
    CHECK(call(&args) == bad.want.status);
    require_error(codec.error, bad.want);
    CHECK(codec == before);
  }
}

quire_status demote_from(const Args* from) {
  Codec target(72);
  const Args to = target.args({QUIRE_GRID_AFFINE, 4, 32, QUIRE_TRANSFORM_OFFSET});
  const Codec before = target;
  const quire_status status = quire_demote(from, &to);
  CHECK(target == before);
  return status;
}

// Two parts of 3 rows and 2 heads of 8 elements.
struct Merge {
  std::vector<float> in = std::vector<float>(2 * 3 * 2 * 8, 1.0f);
  std::vector<float> in_lse = std::vector<float>(2 * 3 * 2, 0.5f);
  std::vector<float> out = std::vector<float>(3 * 2 * 8, -9.0f);
  std::vector<float> lse = std::vector<float>(3 * 2, -9.0f);
  quire_part part[2] = {};
  quire_merge_args args = QUIRE_MERGE_ARGS_INIT;
  quire_error error = QUIRE_ERROR_INIT;

  Merge() {
    for (std::size_t p = 0; p < 2; ++p)
      part[p] = {{in.data() + p * 48, QUIRE_F32, 0, 0, 0, 0}, in_lse.data() + p * 6, 0, 0};
    args.parts = part;
    args.part_count = 2;
    args.rows = 3;
    args.q_heads = 2;
    args.head_dim_v = 8;
    args.out = {out.data(), QUIRE_F32, 0, 0, 0, 0};
    args.lse = lse.data();
    args.error = &error;
  }
};

const Bad<Merge> kBadMerge[] = {
    {"no parts", [](Merge& m) { m.args.parts = nullptr; }, {1, "parts", "not NULL"}},
    {"lse NaN",
     [](Merge& m) { m.in_lse[8] = std::numeric_limits<float>::quiet_NaN(); },
     {QUIRE_BAD_VALUE, "parts.lse", "finite", 0, 2}},
    {"lse Inf",
     [](Merge& m) { m.in_lse[3] = std::numeric_limits<float>::infinity(); },
     {QUIRE_BAD_VALUE, "parts.lse", "finite", 0, 3}},
    {"0 parts", [](Merge& m) { m.args.part_count = 0; }, {1, "part_count", "1 to 64", -1, 0}},
    {"65 parts", [](Merge& m) { m.args.part_count = 65; }, {1, "part_count", "1 to 64", 64, 65}},
    {"0 rows", [](Merge& m) { m.args.rows = 0; }, {1, "rows", "at least 1", 1, 0}},
    {"0 heads", [](Merge& m) { m.args.q_heads = 0; }, {1, "q_heads", "at least 1", 1, 0}},
    {"dim 0", [](Merge& m) { m.args.head_dim_v = 0; }, {1, "head_dim_v", "1 to 256", -1, 0}},
    {"dim 257", [](Merge& m) { m.args.head_dim_v = 257; }, {1, "head_dim_v", "1 to 256", 256, 257}},
    {"base 2 of 2", [](Merge& m) { m.args.lse_base_2 = 2; }, {1, "lse_base_2", "0 or 1", 1, 2}},
    {"part base 2 of 2",
     [](Merge& m) { m.part[1].lse_base_2 = 2; },
     {1, "parts.lse_base_2", "0 or 1", 1, 2}},
    {"no LSE of part 1",
     [](Merge& m) { m.part[1].lse = nullptr; },
     {1, "parts.lse", "not NULL", -1, 1}},
    {"no data of part 1",
     [](Merge& m) { m.part[1].out.data = nullptr; },
     {1, "parts.out", "not NULL"}},
    {"dtype of part 0", [](Merge& m) { m.part[0].out.dtype = 4; }, {1, "parts.out", "QUIRE_F32"}},
    {"no out", [](Merge& m) { m.args.out.data = nullptr; }, {1, "out", "not NULL"}},
    {"out between floats",
     [](Merge& m) { m.args.out.data = one_byte_on(m.out.data()); },
     {QUIRE_MISALIGNED, "out", "aligned", 4, 1}},
    {"flags", [](Merge& m) { m.args.flags = 4; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 4}},
};

// A ring of 4 ids of which 2 are taken and lie in `out`.
struct Pages {
  std::int32_t ids[4] = {0, 1, 2, 3};
  std::uint64_t head = 2;
  std::uint64_t tail = 4;
  std::uint32_t counts[2] = {1, 1};
  std::int32_t out[2 * 3] = {0, -1, -1, 1, -1, -1};
  quire_pages_args args = QUIRE_PAGES_ARGS_INIT;
  quire_error error = QUIRE_ERROR_INIT;

  Pages() {
    args.ids = ids;
    args.capacity = 4;
    args.head = &head;
    args.tail = &tail;
    args.counts = counts;
    args.rows = 2;
    args.out = out;
    args.row_stride = 3;
    args.error = &error;
  }
  std::vector<std::int64_t> state() const {
    std::vector<std::int64_t> all(std::begin(ids), std::end(ids));
    all.insert(all.end(), std::begin(out), std::end(out));
    all.insert(all.end(), std::begin(counts), std::end(counts));
    all.push_back(static_cast<std::int64_t>(head));
    all.push_back(static_cast<std::int64_t>(tail));
    return all;
  }
};

const Bad<Pages> kBadPages[] = {
    {"no ids", [](Pages& p) { p.args.ids = nullptr; }, {1, "ids", "not NULL"}},
    {"no head", [](Pages& p) { p.args.head = nullptr; }, {1, "head", "not NULL"}},
    {"no tail", [](Pages& p) { p.args.tail = nullptr; }, {1, "tail", "not NULL"}},
    {"no out", [](Pages& p) { p.args.out = nullptr; }, {1, "out", "not NULL"}},
    {"capacity 0", [](Pages& p) { p.args.capacity = 0; }, {1, "capacity", "1 to 2^31"}},
    {"capacity 2^31", [](Pages& p) { p.args.capacity = 1ull << 31; }, {1, "capacity", "2^31"}},
    {"tail below head", [](Pages& p) { p.tail = 1; }, {1, "tail", "head + capacity", 6, 1}},
    {"tail beyond", [](Pages& p) { p.tail = 7; }, {1, "tail", "head + capacity", 6, 7}},
    {"flags", [](Pages& p) { p.args.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

const Bad<Pages> kBadTake[] = {
    {"no counts", [](Pages& p) { p.args.counts = nullptr; }, {1, "counts", "not NULL"}},
    {"row too short", [](Pages& p) { p.counts[1] = 4; }, {1, "counts", "row_stride", 3, 4}},
    {"negative stride", [](Pages& p) { p.args.row_stride = -3; }, {1, "counts", "row_stride"}},
};

const Bad<Pages> kBadReturn[] = {
    {"more than were taken", [](Pages& p) { p.head = 1; }, {1, "rows", "were taken", 1, 2}},
    {"a negative id", [](Pages& p) { p.out[3] = -1; }, {1, "out", "below capacity", 4}},
    {"an id of no page", [](Pages& p) { p.out[3] = 4; }, {1, "out", "below capacity", 4, 4}},
};

template <std::size_t kSize>
void refuse_pages(const Bad<Pages> (&table)[kSize], quire_status (*call)(const quire_pages_args*)) {
  for (const Bad<Pages>& bad : table) {
    INFO(bad.what);
    Pages pages;
    bad.spoil(pages);
    const std::vector<std::int64_t> before = pages.state();
    CHECK(call(&pages.args) == bad.want.status);
    require_error(pages.error, bad.want);
    CHECK(pages.state() == before);
  }
  CHECK(call(nullptr) == QUIRE_INVALID_ARGUMENT);
  Pages good;
  CHECK(call(&good.args) == QUIRE_OK);
}

}  // namespace

TEST_CASE("encode, decode and demote refuse wrong arguments and write nothing",
          "[cache][bad_input]") {
  refuse_codec(kBadCodec, quire_encode);
  refuse_codec(kBadCodec, quire_decode);
  refuse_codec(kBadCodec, demote_from);
  refuse_codec(kBadRows, quire_encode);
  refuse_codec(kBadRows, quire_decode);
  CHECK(quire_encode(nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_decode(nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_demote(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
}

TEST_CASE("demote refuses a target that does not fit its source", "[cache][bad_input]") {
  Codec from;
  Codec to(72);
  const Codec before = to;
  const Args source = from.args(kSixBits);
  Args target = to.args({QUIRE_GRID_AFFINE, 4, 32, 0});
  CHECK(quire_demote(&source, &target) == QUIRE_INVALID_ARGUMENT);
  require_error(from.error, {QUIRE_INVALID_ARGUMENT, "transform", "same", 2, 0});
  target.format.transform = QUIRE_TRANSFORM_OFFSET;
  target.meta = nullptr;
  CHECK(quire_demote(&source, &target) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_demote(&source, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(to == before);
}

TEST_CASE("encode refuses a bad number in any row and dtype", "[cache][bad_input]") {
  Codec codec;
  const Codec before = codec;
  Args args = codec.args(kSixBits);
  for_bad_values(codec.rows, kCount * kDim, true, [&](const quire_rows& rows, std::int64_t at) {
    if (std::isfinite(load_as_float(rows.data, static_cast<DType>(rows.dtype), at))) return;
    codec.error = QUIRE_ERROR_INIT;
    args.rows = rows;
    CHECK(quire_encode(&args) == QUIRE_BAD_VALUE);
    require_error(codec.error, {QUIRE_BAD_VALUE, "rows", "finite", -1, at});
    CHECK(codec == before);
  });
}

TEST_CASE("encode and decode refuse an offset that is not finite", "[cache][bad_input]") {
  for (const std::size_t at : {std::size_t{0}, std::size_t{kDim - 1}}) {
    for (const auto call : {quire_encode, quire_decode}) {
      Codec codec;
      const Codec before = codec;
      codec.offset[at] = kNan;
      const Args args = codec.args(kSixBits);
      CHECK(call(&args) == QUIRE_BAD_VALUE);
      CHECK(codec == before);
    }
  }
}

TEST_CASE("encode saturates huge numbers, counts them and stays finite", "[cache][bad_input]") {
  for (const std::uint32_t transform : {0u, 1u}) {
    Codec codec;
    for (std::size_t i = 0; i < codec.rows.size(); i += 2) codec.rows[i] = 2.9e38f;
    const Args args = codec.args({QUIRE_GRID_SYMMETRIC_TABLE, 4, 0, transform});
    CHECK(quire_encode(&args) == QUIRE_OK);
    CHECK(codec.saturated > 7);
    CHECK(quire_decode(&args) == QUIRE_OK);
    CHECK(std::all_of(
        codec.rows.begin(), codec.rows.end(), [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE("merge refuses wrong arguments and writes nothing", "[cache][bad_input]") {
  for (const Bad<Merge>& bad : kBadMerge) {
    INFO(bad.what);
    Merge merge;
    bad.spoil(merge);
    CHECK(quire_merge(&merge.args) == bad.want.status);
    require_error(merge.error, bad.want);
    CHECK(merge.out == Merge().out);
    CHECK(merge.lse == Merge().lse);
  }
  CHECK(quire_merge(nullptr) == QUIRE_INVALID_ARGUMENT);
  Merge good;
  CHECK(quire_merge(&good.args) == QUIRE_OK);
  CHECK(good.out != Merge().out);
}

TEST_CASE("the page allocator refuses wrong arguments and writes nothing", "[cache][bad_input]") {
  refuse_pages(kBadPages, quire_pages_take);
  refuse_pages(kBadPages, quire_pages_return);
  refuse_pages(kBadTake, quire_pages_take);
  refuse_pages(kBadReturn, quire_pages_return);
}

}  // namespace quire::test
