// Prints the median nanoseconds of a forecast and of an observation by the latency model: ROUNDS.
//
// The model has seen enough steps to fill its windows. Forecasts are timed a hundred at a time,
// because one is not much longer than a look at the clock.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "slo/latency_model.h"

namespace {

using namespace rose::slo;

constexpr int kWarmSteps = 4000;
constexpr int kBatch = 100;

Features random_step(std::mt19937_64& random) {
  return {.decode_sequences = static_cast<double>(random() % 64),
          .context_tokens = static_cast<double>(random() % 50'000),
          .prefill_tokens = random() % 4 == 0 ? static_cast<double>(random() % 513) : 0};
}

double cost_ms(const Features& step, std::mt19937_64& random) {
  return (5 + 0.1 * step.decode_sequences + 0.05 * step.prefill_tokens) *
         std::lognormal_distribution<double>{0, 0.1}(random);
}

std::int64_t since(std::chrono::steady_clock::time_point began) {
  return (std::chrono::steady_clock::now() - began).count();
}

double median(std::vector<std::int64_t>& samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return static_cast<double>(*middle);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int rounds = std::atoi(argv[1]);
  std::mt19937_64 random{7};
  auto made = LatencyModel::create({.step_tokens = 512});
  if (!made.ok()) return 1;
  LatencyModel& model = *made.value();
  for (int i = 0; i < kWarmSteps; ++i) {
    const Features step = random_step(random);
    if (!model.observe(step, cost_ms(step, random)).ok()) return 1;
  }
  std::vector<std::int64_t> forecasts;
  std::vector<std::int64_t> observations;
  double sum = 0;  // or the compiler would leave the forecasts out
  for (int round = 0; round < rounds; ++round) {
    const Features step = random_step(random);
    const double actual_ms = cost_ms(step, random);
    auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i) sum += model.forecast(step).value().upper_ms;
    forecasts.push_back(since(began));
    began = std::chrono::steady_clock::now();
    if (!model.observe(step, actual_ms).ok()) return 1;
    observations.push_back(since(began));
  }
  if (!(sum > 0)) return 1;
  std::printf("%.1f %.0f\n", median(forecasts) / kBatch, median(observations));
}
