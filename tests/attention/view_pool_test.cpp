// Views over pools beyond 4 GiB: addresses are 64-bit products. The pool is address space without
// memory behind it, only touched pages exist. Oracle: the same tokens in a small pool, bit by bit.
#include <sys/mman.h>

#include "support/attention_view.hpp"

namespace quire {
namespace {

constexpr std::uint32_t kHeads = 2, kDim = 64, kTokens = 100;

class HugePool {
 public:
  explicit HugePool(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(
        nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  HugePool(const HugePool&) = delete;
  HugePool& operator=(const HugePool&) = delete;
  ~HugePool() { munmap(data_, bytes_); }

  void* data() const { return data_; }
  bool there() const { return data_ != MAP_FAILED; }

 private:
  std::size_t bytes_;
  void* data_;
};

quire_layout_desc two_tiers() {
  quire_layout_desc desc = QUIRE_LAYOUT_DESC_INIT;
  desc.head_dim_k = desc.head_dim_v = kDim;
  desc.tier_count = 2;
  desc.page_bytes = 2048;
  desc.tier[0] = {{QUIRE_GRID_AFFINE, 4, 0, 0}, {QUIRE_GRID_AFFINE, 4, 0, 0}};
  desc.tier[1] = {{QUIRE_GRID_AFFINE, 2, 0, 0}, {QUIRE_GRID_AFFINE, 2, 0, 0}};
  return desc;
}

// Fills both tiers of one sequence and attends.
test::ViewResult run(test::ViewBox& box) {
  test::Rng rng(7);
  const std::vector<float> k = rng.normals(2 * kTokens * kHeads * kDim);
  const std::vector<float> v = rng.normals(2 * kTokens * kHeads * kDim);
  const std::vector<float> q = rng.normals(2 * kHeads * kDim);
  box.append(0, 0, kTokens, 0, k.data(), v.data());
  const std::size_t half = std::size_t{kTokens} * kHeads * kDim;
  box.append(0, 1, kTokens, kTokens, k.data() + half, v.data() + half);
  const std::int32_t position = 2 * kTokens - 1;
  quire_view_attention_args args = QUIRE_VIEW_ATTENTION_ARGS_INIT;
  args.first_position = &position;
  args.splits = 3;
  return test::attend_view(box.view, args, q.data());
}

test::ViewBox small_box(test::Blocks blocks) {
  test::Rng rng(6);
  return test::ViewBox(two_tiers(), 2 * kHeads, kHeads, 1, 12, blocks, rng);
}

// The ids of the small box, spread over the huge pool.
void require_same(test::Blocks blocks,
                  std::int32_t id_step,
                  std::int64_t page_stride,
                  std::int64_t head_stride) {
  test::ViewBox near = small_box(blocks);
  test::ViewBox far = small_box(blocks);
  const std::size_t rows = blocks == test::Blocks::kPagePerHead ? kHeads : 1;
  const std::size_t last = rows * 12 - 1;
  const std::int64_t stride = page_stride == 0 ? 2048 : page_stride;
  const HugePool pool(static_cast<std::size_t>(id_step * static_cast<std::int64_t>(last) * stride +
                                               head_stride * kHeads) +
                      4096);
  REQUIRE(pool.there());
  for (std::int32_t& id : far.table()) id *= id_step;
  far.view.pool = pool.data();
  far.view.page_stride = page_stride;
  far.view.head_stride = head_stride;
  const std::int64_t end =
      std::int64_t{id_step} * static_cast<std::int64_t>(last) * stride + head_stride;
  REQUIRE(end > (std::int64_t{1} << 32));
  const test::ViewResult want = run(near);
  const test::ViewResult got = run(far);
  REQUIRE(got.out == want.out);
  REQUIRE(got.lse == want.lse);
}

TEST_CASE("a huge page stride reads the right bytes", "[attention][view]") {
  require_same(test::Blocks::kPagePerHead, 1, std::int64_t{200} << 20, 0);
}

TEST_CASE("page ids beyond 2^31 bytes read the right bytes", "[attention][view]") {
  require_same(test::Blocks::kPagePerHead, 100000, 0, 0);
}

TEST_CASE("a huge head stride reads the right bytes", "[attention][view]") {
  require_same(test::Blocks::kHeadMajor, 1, 2048, (std::int64_t{5} << 30) + 64);
}

}  // namespace
}  // namespace quire
