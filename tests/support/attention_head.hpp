// One KV head of any formats, written record by record with the scalar definition of the headers,
// and the plain arrays it decodes to: what the oracle of every attention test works on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "quire/pages/head_tokens.hpp"
#include "support/compare.hpp"
#include "support/gen.hpp"

namespace quire::test {

// Bytes of an exact size, aligned to 128, full of NaN in every float type until written.
class Bytes {
 public:
  explicit Bytes(std::size_t size = 0) : size_(size), data_(allocate(size)) {
    std::memset(data_, 0xff, size);
  }
  Bytes(Bytes&& other) noexcept : size_(other.size_), data_(other.data_) { other.data_ = nullptr; }
  Bytes& operator=(Bytes&& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Bytes() { ::operator delete (data_, std::align_val_t{128}); }

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  static std::uint8_t* allocate(std::size_t size) {
    return static_cast<std::uint8_t*>(::operator new (size + (size == 0), std::align_val_t{128}));
  }

  std::size_t size_;
  std::uint8_t* data_;
};

struct HeadSpec {
  Format tier[kMaxTiers];
  std::uint32_t tier_count = 2;
  Format ring;  // transforms are those of the tiers
  bool has_ring = true;
  std::uint32_t sinks = 1;
  std::uint32_t window = 16;
  std::uint32_t draft = 0;  // further slots of the ring's cycle
  std::uint32_t dim_k = 64;
  std::uint32_t dim_v = 64;
  std::uint32_t tokens[kMaxTiers] = {};  // in pages; what is outside ring and pages was dropped
  std::uint32_t room[kMaxTiers] = {};    // further tokens that the pages have room for
  std::int32_t length = 0;               // of the sequence
  std::uint32_t seed = 0;                // of the Hadamard signs
  std::uint64_t page_bytes = 0;
  TokenFields fields;
  std::int32_t position_shift = 0;           // of every stored position; only without a ring
  const std::vector<float>* keys = nullptr;  // [length, dim_k] instead of random ones
  float k_scale = 1.0f;
  float v_scale = 1.0f;
};

inline VectorFormat float_format(Grid grid) { return {grid, 16, 0, kTransformNone}; }

inline Format with_transforms(Format format, std::uint32_t k, std::uint32_t v) {
  format.k.transform = k;
  format.v.transform = v;
  return format;
}

inline RingShape ring_shape(const HeadSpec& spec) {
  if (!spec.has_ring) return {};
  return {spec.sinks, spec.window, spec.window + spec.draft};
}

// Tokens of the sequence that the ring does not hold: the most that pages can.
inline std::uint32_t outside_ring(const HeadSpec& spec) {
  return static_cast<std::uint32_t>(ring_shape(spec).outside(spec.length));
}

enum class Fill { kTokens, kNothing };

class TestHead {
 public:
  TestHead(const HeadSpec& head_spec, Rng& rng, Fill fill = Fill::kTokens) : spec(head_spec) {
    make_layout();
    make_vectors(rng);
    make_memory(rng);
    if (fill == Fill::kNothing) return;
    place_tokens(rng);
    decode();
  }
  TestHead(TestHead&&) = delete;

  HeadView view() const {
    HeadView v;
    v.tiers = layout.tier;
    v.tier_count = layout.tier_count;
    for (std::uint32_t t = 0; t < layout.tier_count; ++t) v.tokens[t] = spec.tokens[t];
    v.row.ids = row_.data();
    v.row.capacity = static_cast<std::uint32_t>(row_.size());
    v.space = {pages_.data(), static_cast<std::int64_t>(layout.page_bytes), 0};
    v.ring = spec.has_ring ? &ring : nullptr;
    v.ring_block = ring_block_.data();
    v.shape = ring_shape(spec);
    v.length = spec.length;
    v.k = {spec.tier[0].k.transform, spec.seed, k_offset_half_.data()};
    v.v = {spec.tier[0].v.transform, spec.seed, v_offset_half_.data()};
    return v;
  }

  std::uint32_t count() const { return static_cast<std::uint32_t>(positions.size()); }

  // Stored scores in segment order.
  std::vector<float> scores() const {
    std::vector<float> out;
    each_token([&](const Segment& s, std::uint32_t t) {
      out.push_back(score_array(*s.layout, s.base)[s.first + t]);
    });
    return out;
  }
  void set_scores(float value) const {
    each_token([&](const Segment& s, std::uint32_t t) {
      score_array(*s.layout, s.base)[s.first + t] = value;
    });
  }

  template <class VisitorT>
  void each_token(VisitorT&& visit) const {
    const HeadView v = view();
    for (std::uint32_t i = 0; i < v.segment_count(); ++i) {
      const Segment s = v.segment(i);
      for (std::uint32_t t = 0; t < s.count; ++t) visit(s, t);
    }
  }

  // What was written, before any format: [length, dim], in order of position.
  const std::vector<float>& true_keys() const { return true_k_; }
  const std::vector<float>& true_values() const { return true_v_; }

  // The same layout and pages after other tokens were put into them.
  void set_tokens(std::uint32_t high, std::uint32_t low, std::int32_t length) {
    spec.tokens[0] = high;
    spec.tokens[1] = low;
    spec.length = length;
  }

  // Every byte that attention may write besides scores would show here.
  std::vector<std::uint8_t> bytes() const {
    std::vector<std::uint8_t> all(pages_.data(), pages_.data() + pages_.size());
    all.insert(all.end(), ring_block_.data(), ring_block_.data() + ring_block_.size());
    return all;
  }

  HeadSpec spec;
  PageLayout layout;
  RingLayout ring;
  std::vector<float> keys;    // [count, dim_k] decoded, transforms undone, in segment order
  std::vector<float> values;  // [count, dim_v]
  std::vector<std::int32_t> positions;
  double k_norm = 0.0;  // largest norm of a key, as stored or decoded
  double v_max = 0.0;   // largest element of a value

 private:
  void make_layout() {
    PageLayoutSpec question;
    question.tier_count = spec.tier_count;
    for (std::uint32_t t = 0; t < spec.tier_count; ++t) question.tier[t] = spec.tier[t];
    question.head_dim_k = spec.dim_k;
    question.head_dim_v = spec.dim_v;
    question.fields = spec.fields;
    question.page_bytes = spec.page_bytes;
    const Expected<PageLayout> made = page_layout(question);
    if (!made.ok()) throw std::bad_alloc();  // a mistake of the test
    layout = made.value();
    spec.ring = with_transforms(spec.ring, spec.tier[0].k.transform, spec.tier[0].v.transform);
    const std::uint32_t slots = spec.has_ring ? spec.sinks + spec.window + spec.draft : 0;
    ring = ring_layout(spec.ring, spec.dim_k, spec.dim_v, spec.fields, slots);
  }

  static std::vector<float> rows(
      Rng& rng, std::uint32_t count, std::uint32_t dim, float scale, std::vector<float>& mean) {
    mean = rng.normals(dim, 0.5f * scale);
    std::vector<float> x = rng.normals(std::size_t{count} * dim, scale);
    const std::uint32_t loud = rng.below(dim);  // an outlier channel
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t channel = i % dim;
      x[i] = (channel == loud ? 3.0f * x[i] : x[i]) + mean[channel];
    }
    return x;
  }

  void make_vectors(Rng& rng) {
    const auto n = static_cast<std::uint32_t>(spec.length);
    std::vector<float> mean;
    true_k_ = rows(rng, n, spec.dim_k, spec.k_scale, mean);
    for (const float m : mean) k_offset_half_.push_back(float_to_half(m));
    if (spec.keys != nullptr) true_k_ = *spec.keys;
    true_v_ = rows(rng, n, spec.dim_v, spec.v_scale, mean);
    for (const float m : mean) v_offset_half_.push_back(float_to_half(m));
  }

  // Pages in shuffled order behind a row with a hole in its middle; unused ids are -1.
  void make_memory(Rng& rng) {
    const std::uint32_t high = ceil_div(spec.tokens[0] + spec.room[0], layout.tier[0].tokens);
    const std::uint32_t low =
        spec.tier_count < 2 ? 0 : ceil_div(spec.tokens[1] + spec.room[1], layout.tier[1].tokens);
    std::vector<std::int32_t> ids(high + low);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
    shuffle(rng, ids);
    row_.assign(high + low + 3, -1);
    const auto capacity = static_cast<std::uint32_t>(row_.size());
    for (std::uint32_t i = 0; i < high; ++i) row_[row_slot(0, i, capacity)] = ids[i];
    for (std::uint32_t i = 0; i < low; ++i) row_[row_slot(1, i, capacity)] = ids[high + i];
    pages_ = Bytes(ids.size() * layout.page_bytes);
    ring_block_ = Bytes(ring.bytes);
  }

  static void shuffle(Rng& rng, std::vector<std::int32_t>& x) {
    for (std::size_t i = x.size(); i > 1; --i)
      std::swap(x[i - 1], x[rng.below(static_cast<std::uint32_t>(i))]);
  }

  void write(const TokenPlace& place, std::int32_t position) {
    float x[kMaxHeadDim];
    float y[kMaxHeadDim];
    const auto at = static_cast<std::size_t>(position);
    std::copy_n(true_k_.data() + at * spec.dim_k, spec.dim_k, x);
    std::copy_n(true_v_.data() + at * spec.dim_v, spec.dim_v, y);
    const HeadView v = view();
    transform_stored(v.k, spec.dim_k, x);
    transform_stored(v.v, spec.dim_v, y);
    CodecEvents events;
    write_record(place, x, y, 0.0f, position + spec.position_shift, events);
  }

  void place_tokens(Rng& rng) {
    const HeadView v = view();
    std::vector<std::int32_t> outside;
    for (std::int32_t p = 0; p < spec.length; ++p) {
      if (v.ring != nullptr && v.shape.holds(p, spec.length)) {
        write(ring_place(v, p), p);
      } else {
        outside.push_back(p);
      }
    }
    if (spec.fields.position) shuffle(rng, outside);
    std::size_t next = 0;
    for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
      for (std::uint32_t i = 0; i < spec.tokens[t]; ++i)
        write(place_of(v, t, i), outside.at(next++));
    }
  }

  void decode() {
    const HeadView now = view();
    float x[kMaxHeadDim];
    each_token([&](const Segment& s, std::uint32_t t) {
      const std::uint32_t at = s.first + t;
      decode_vector(s.layout->format.k, spec.dim_k, as_const(k_slot(*s.layout, s.base, at)), x);
      k_norm = std::max(k_norm, norm(x, spec.dim_k));
      transform_back(now.k, spec.dim_k, x);
      k_norm = std::max(k_norm, norm(x, spec.dim_k));
      keys.insert(keys.end(), x, x + spec.dim_k);
      decode_vector(s.layout->format.v, spec.dim_v, as_const(v_slot(*s.layout, s.base, at)), x);
      transform_back(now.v, spec.dim_v, x);
      v_max = std::max(v_max, largest(x, spec.dim_v));
      values.insert(values.end(), x, x + spec.dim_v);
      positions.push_back(s.position(t));
    });
  }

  std::vector<float> true_k_;
  std::vector<float> true_v_;
  std::vector<std::uint16_t> k_offset_half_;
  std::vector<std::uint16_t> v_offset_half_;
  std::vector<std::int32_t> row_;
  Bytes pages_;
  Bytes ring_block_;
};

}  // namespace quire::test
