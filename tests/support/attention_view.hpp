// An engine's own blocks and tables, and calls of quire_view_* over them.
#pragma once

#include <algorithm>
#include <vector>

#include "quire/quire.hpp"
#include "support/attention_head.hpp"
#include "support/catch.hpp"

namespace quire::test {

enum class Blocks {
  kAllHeads,     // a block holds the pages of all heads; heads share one table row
  kPagePerHead,  // every head has pages and a row of its own
  kHeadMajor     // all blocks of head 0, then of head 1, ...; heads share one row
};
inline constexpr Blocks kBlocks[] = {Blocks::kAllHeads, Blocks::kPagePerHead, Blocks::kHeadMajor};

class ViewBox {
 public:
  ViewBox(const quire_layout_desc& layout_desc,
          std::uint32_t q_heads,
          std::uint32_t kv_heads,
          std::uint32_t sequences,
          std::uint32_t capacity,
          Blocks blocks,
          Rng& rng) {
    layout_.struct_size = sizeof(layout_);
    REQUIRE(quire_layout_make(&layout_desc, &layout_) == QUIRE_OK);
    const bool own = blocks == Blocks::kPagePerHead;
    const std::uint32_t rows = sequences * (own ? kv_heads : 1);
    const std::uint32_t pages = rows * capacity;
    const auto page = static_cast<std::int64_t>(layout_.page_bytes);
    view = QUIRE_VIEW_INIT;
    view.layout = layout_desc;
    view.q_heads = q_heads;
    view.kv_heads = kv_heads;
    view.sequences = sequences;
    view.table_capacity = capacity;
    view.table_sequence_stride = (own ? kv_heads : 1) * capacity;
    view.table_head_stride = own ? capacity : 0;
    view.tokens_sequence_stride = (own ? kv_heads : 1) * layout_.tier_count;
    view.tokens_head_stride = own ? layout_.tier_count : 0;
    if (blocks == Blocks::kAllHeads) {
      view.head_stride = page + 64;
      view.page_stride = kv_heads * view.head_stride + 192;
    } else if (blocks == Blocks::kHeadMajor) {
      view.head_stride = pages * page;
      view.page_stride = page;
    }
    const std::int64_t stride = view.page_stride == 0 ? page : view.page_stride;
    memory_ = Bytes(static_cast<std::size_t>(pages * stride + kv_heads * view.head_stride));
    table_.resize(pages);
    for (std::uint32_t i = 0; i < pages; ++i) table_[i] = static_cast<std::int32_t>(i);
    for (std::uint32_t i = pages; i > 1; --i) std::swap(table_[i - 1], table_[rng.below(i)]);
    tokens_.assign(rows * layout_.tier_count, 0);
    view.pool = memory_.data();
    view.table = table_.data();
    view.tokens = tokens_.data();
  }

  const quire_layout& layout() const { return layout_; }
  std::vector<std::int32_t>& table() { return table_; }
  std::vector<std::uint32_t>& tokens() { return tokens_; }
  const Bytes& memory() const { return memory_; }

  // The view of one sequence.
  quire_view one(std::uint32_t sequence) const {
    quire_view v = view;
    v.sequences = 1;
    v.table += sequence * view.table_sequence_stride;
    v.tokens += sequence * view.tokens_sequence_stride;
    return v;
  }

  // Appends rows of one sequence in pieces and counts them.
  void append(std::uint32_t sequence,
              std::uint32_t tier,
              std::uint32_t count,
              std::int32_t first_position,
              const float* k,
              const float* v) {
    const quire_view single = one(sequence);
    std::uint32_t* tokens = tokens_.data() + sequence * view.tokens_sequence_stride + tier;
    const std::uint32_t before = *tokens;
    for (std::uint32_t done = 0, piece = 1; done < count; done += piece, piece = 2 * piece + 3) {
      piece = std::min(piece, count - done);
      quire_view_append_args args = QUIRE_VIEW_APPEND_ARGS_INIT;
      args.view = &single;
      args.tier = tier;
      args.first_token = before + done;
      args.count = piece;
      args.first_position = first_position + static_cast<std::int32_t>(done);
      args.k = rows_of(k + std::size_t{done} * view.kv_heads * view.layout.head_dim_k);
      args.v = rows_of(v + std::size_t{done} * view.kv_heads * view.layout.head_dim_v);
      REQUIRE(quire_view_append(&args) == QUIRE_OK);
    }
    const std::uint32_t rows = view.tokens_head_stride == 0 ? 1 : view.kv_heads;
    for (std::uint32_t h = 0; h < rows; ++h) tokens[h * view.tokens_head_stride] = before + count;
  }

  quire_view view;

 private:
  quire_layout layout_ = {};
  Bytes memory_;
  std::vector<std::int32_t> table_;
  std::vector<std::uint32_t> tokens_;
};

struct ViewResult {
  std::vector<float> out;
  std::vector<float> lse;
};

// quire_view_attention with exactly the workspace it asks for.
inline ViewResult attend_view(const quire_view& view,
                              quire_view_attention_args args,
                              const float* q) {
  const std::uint32_t rows = args.rows == 0 ? 1 : args.rows;
  const std::size_t lanes = std::size_t{view.sequences} * rows * view.q_heads;
  ViewResult result;
  result.out.assign(lanes * view.layout.head_dim_v, std::nanf(""));
  result.lse.assign(lanes, std::nanf(""));
  args.view = &view;
  args.q = rows_of(q);
  args.out = rows_of(result.out.data());
  args.lse = result.lse.data();
  REQUIRE(quire_view_workspace(&args, &args.workspace_bytes) == QUIRE_OK);
  const Bytes workspace(args.workspace_bytes + 256);
  args.workspace = workspace.data();
  REQUIRE(quire_view_attention(&args) == QUIRE_OK);
  for (std::size_t i = args.workspace_bytes; i < workspace.size(); ++i)
    REQUIRE(workspace.data()[i] == 0xff);
  return result;
}

}  // namespace quire::test
