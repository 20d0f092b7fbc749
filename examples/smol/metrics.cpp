#include "metrics.hpp"

#include <algorithm>
#include <cmath>

namespace smol {

LogitRow summarise(const float* logits, uint32_t vocabulary) {
  LogitRow row;
  row.logits = logits;
  for (uint32_t i = 1; i < vocabulary; ++i) {
    if (logits[i] > logits[row.top]) row.top = i;
  }
  const float largest = logits[row.top];
  double sum = 0.0;
  for (uint32_t i = 0; i < vocabulary; ++i)
    sum += static_cast<double>(std::exp(logits[i] - largest));
  row.lse = static_cast<double>(largest) + std::log(sum);
  return row;
}

double kl_divergence(const LogitRow& reference, const LogitRow& row, uint32_t vocabulary) {
  const double shift = row.lse - reference.lse;
  const auto reference_lse = static_cast<float>(reference.lse);
  double sum = 0.0;
  for (uint32_t i = 0; i < vocabulary; ++i) {
    const float r = reference.logits[i];
    const double p = static_cast<double>(std::exp(r - reference_lse));
    sum += p * (static_cast<double>(r) - static_cast<double>(row.logits[i]) + shift);
  }
  return sum;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

void Quality::add(const LogitRow& reference,
                  const LogitRow& row,
                  uint32_t vocabulary,
                  int32_t next) {
  kld_.push_back(kl_divergence(reference, row, vocabulary));
  same_ += reference.top == row.top ? 1 : 0;
  if (next < 0) return;
  ++predicted_;
  nll_ += row.lse - static_cast<double>(row.logits[next]);
}

double Quality::kld_mean() const {
  double sum = 0.0;
  for (const double x : kld_) sum += x;
  return kld_.empty() ? 0.0 : sum / static_cast<double>(kld_.size());
}

double Quality::same_top() const {
  return kld_.empty() ? 0.0 : static_cast<double>(same_) / static_cast<double>(kld_.size());
}

double Quality::perplexity() const {
  return predicted_ == 0 ? 0.0 : std::exp(nll_ / static_cast<double>(predicted_));
}

}  // namespace smol
