// Quality against the run's own fp16 cache: KL divergence, same top token, perplexity.
#pragma once

#include <cstdint>
#include <vector>

namespace smol {

// One row of logits, with what every comparison needs of it.
struct LogitRow {
  const float* logits = nullptr;
  double lse = 0.0;
  uint32_t top = 0;
};

LogitRow summarise(const float* logits, uint32_t vocabulary);

// KL(reference || row) in nats.
double kl_divergence(const LogitRow& reference, const LogitRow& row, uint32_t vocabulary);

// Linear interpolation between order statistics, 0 <= q <= 1; sorts a copy.
double quantile(std::vector<double> values, double q);

// Collects one setting's decode steps.
class Quality {
 public:
  // `next` is the token that follows in the text, or -1 at its end.
  void add(const LogitRow& reference, const LogitRow& row, uint32_t vocabulary, int32_t next);

  double kld_mean() const;
  double kld_p99() const { return quantile(kld_, 0.99); }
  double same_top() const;
  double perplexity() const;
  uint64_t steps() const { return kld_.size(); }

 private:
  std::vector<double> kld_;
  uint64_t same_ = 0;
  uint64_t predicted_ = 0;
  double nll_ = 0.0;
};

}  // namespace smol
