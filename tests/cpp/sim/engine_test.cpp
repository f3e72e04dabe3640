#include "sim/engine.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::sim;

namespace {

constexpr double kMs = 1e6;
constexpr Nanoseconds kMsNs = 1'000'000;
constexpr std::int64_t kChunk = 100;
// 1 ms per prompt token; a step of 10 ms, plus 1 ms per sequence and 0.01 ms per context token.
constexpr StepTimes kTimes{1000, 10, 1, 0.01};

// The same engine, simply written: one step after the other.
class PlainEngine {
 public:
  struct Sequence {
    int number;
    bool is_in{false};
    std::int64_t prompt_left;
    std::int64_t context;
    std::int64_t to_generate;
    std::int64_t generated{0};
    bool is_decoding{false};
  };

  void set_speed(double speed, double now_ns) {
    run_until(now_ns);
    speed_ = speed;
  }
  void add(int number, std::int64_t prompt, std::int64_t context, std::int64_t to_generate,
           double now) {
    run_until(now);
    if (work_ns_ == whole_ns_) is_stepping_ = false;  // no work of the step is done
    sequences_.push_back({number, false, prompt, context, to_generate});
  }
  std::int64_t remove(int number, double now_ns) {
    run_until(now_ns);
    if (work_ns_ == whole_ns_) is_stepping_ = false;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (sequences_[i].number != number) continue;
      const std::int64_t generated = sequences_[i].generated;
      sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(i));
      return generated;
    }
    return -1;
  }
  void run_until(double now_ns) {
    while (true) {
      if (!is_stepping_) begin();
      if (!is_stepping_) break;
      const double left_ns = speed_ > 0 ? work_ns_ / speed_ : 1e300;
      if (at_ns_ + left_ns > now_ns) {
        work_ns_ -= (now_ns - at_ns_) * speed_;
        break;
      }
      at_ns_ += left_ns;
      end();
    }
    at_ns_ = std::max(at_ns_, now_ns);
  }

  std::vector<std::pair<int, double>> finished;
  std::int64_t tokens{0};

 private:
  void begin() {
    double work_ms = 0;
    std::int64_t decoding = 0, context = 0;
    chunk_ = 0;
    for (Sequence& one : sequences_) {
      one.is_in = true;
      if (one.is_decoding) {
        ++decoding;
        context += one.context + one.generated;
      } else {
        chunk_ = std::min(kChunk, chunk_ + one.prompt_left);
      }
    }
    if (decoding > 0) {
      work_ms = kTimes.decode_step_ms +
                kTimes.decode_ms_per_sequence * static_cast<double>(decoding) +
                kTimes.decode_ms_per_context_token * static_cast<double>(context);
    }
    work_ms += static_cast<double>(chunk_) / kTimes.prefill_tokens_per_s * 1000;
    work_ns_ = whole_ns_ = work_ms * kMs;
    is_stepping_ = !sequences_.empty();
  }
  void end() {
    is_stepping_ = false;
    std::vector<Sequence> left;
    for (Sequence& one : sequences_) {
      if (one.is_in && one.is_decoding) {
        ++one.generated;
        ++tokens;
      } else if (one.is_in) {
        const std::int64_t computed = std::min(chunk_, one.prompt_left);
        one.prompt_left -= computed;
        chunk_ -= computed;
        one.is_decoding = one.prompt_left == 0;
      }
      if (one.generated == one.to_generate) {
        finished.emplace_back(one.number, at_ns_);
      } else {
        left.push_back(one);
      }
    }
    sequences_ = left;
  }

  std::vector<Sequence> sequences_;
  double speed_{1};
  double at_ns_{0};
  double work_ns_{0};
  double whole_ns_{0};
  std::int64_t chunk_{0};
  bool is_stepping_{false};
};

// Runs an engine, and tracks the place of each sequence.
class Driver {
 public:
  explicit Driver(bool is_stepwise) : engine{kTimes, kChunk, is_stepwise} {}

  void run_until(Nanoseconds now_ns) {
    std::vector<std::size_t> places;
    while (engine.next_ns() <= now_ns) {
      const Nanoseconds at_ns = engine.next_ns();
      places.clear();
      engine.advance(at_ns, places);
      ++jumps;
      for (const std::size_t place : places) finished.emplace_back(numbers[place], at_ns);
      for (; !places.empty(); places.pop_back()) forget(places.back());
    }
  }
  void add(int number, std::int64_t prompt, std::int64_t context, std::int64_t to_generate,
           Nanoseconds now_ns) {
    run_until(now_ns);
    engine.add(prompt, context, to_generate, now_ns);
    numbers.push_back(number);
  }
  std::int64_t remove(int number, Nanoseconds now_ns) {
    run_until(now_ns);
    for (std::size_t place = 0; place < numbers.size(); ++place) {
      if (numbers[place] != number) continue;
      forget(place);
      return engine.remove(place, now_ns).generated;
    }
    return -1;
  }
  void forget(std::size_t place) {
    numbers.erase(numbers.begin() + static_cast<std::ptrdiff_t>(place));
  }

  SimulatedEngine engine;
  std::vector<int> numbers;
  std::vector<std::pair<int, Nanoseconds>> finished;
  int jumps{0};
};

TEST(a_lone_turn_takes_its_prompt_and_an_arithmetic_series_of_steps) {
  Driver driver{false};
  driver.add(0, 250, 250, 4, 0);
  driver.run_until(1000 * kMsNs);
  // 250 ms of prompt, then steps of 11 ms + 2.5, 2.51, 2.52 and 2.53 ms of context.
  CHECK_EQ(driver.finished.size(), 1);
  CHECK_EQ(driver.finished[0].second, 250 * kMsNs + 54 * kMsNs + 60'000);
  CHECK_EQ(driver.engine.tokens_generated(), 4);
  CHECK(std::abs(driver.engine.busy_ns() - 304.06 * kMs) < 10);
}

TEST(a_prompt_that_comes_waits_for_the_step_and_slows_those_behind_it) {
  Driver driver{false};
  driver.add(0, 1, 1, 3, 0);
  // At 1 ms the first step of 11.01 ms begins; the new sequence is in the second one, with its 20
  // ms.
  driver.add(1, 20, 20, 1, 5 * kMsNs);
  driver.run_until(1000 * kMsNs);
  const Nanoseconds second_ns = kMsNs + 11'010'000 + 11'020'000 + 20 * kMsNs;
  const Nanoseconds third_ns = second_ns + 12'000'000 + 30'000 + 200'000;
  CHECK_EQ(driver.finished.size(), 2);
  CHECK_EQ(driver.finished[0].second, third_ns);
  CHECK_EQ(driver.finished[1].second, third_ns);
}

TEST(an_engine_without_a_share_stands_still_and_loses_nothing) {
  Driver driver{false};
  driver.add(0, 10, 10, 1, 0);
  driver.engine.set_speed(0, 4 * kMsNs);
  CHECK_EQ(driver.engine.next_ns(), kNever);
  driver.engine.set_speed(0.5, 1004 * kMsNs);
  driver.run_until(10'000 * kMsNs);
  // 6 ms of prompt and 11.1 ms of a step remained, at half the speed.
  CHECK_EQ(driver.finished[0].second, 1004 * kMsNs + 34'200'000);
  CHECK(std::abs(driver.engine.busy_ns() - 21.1 * kMs) < 10);
}

TEST(who_is_removed_has_what_whole_steps_gave_it) {
  Driver driver{false};
  driver.add(0, 5, 5, 100, 0);
  driver.add(1, 7, 7, 100, 0);
  driver.run_until(60 * kMsNs);
  // 12 ms of prompts, then steps of 12.12, 12.14 and 12.16 ms: the fourth is under way.
  const SimulatedEngine::Progress progress = driver.engine.progress(0, 60 * kMsNs);
  CHECK_EQ(progress.generated, 3);
  CHECK_EQ(progress.computed, 8);
  CHECK_EQ(driver.remove(0, 60 * kMsNs), 3);
  driver.run_until(10'000 * kMsNs);
  CHECK_EQ(driver.engine.tokens_generated(), 103);
  CHECK(driver.engine.is_idle());
}

struct Script {
  double at_ms;
  int what;  // 0, 1 add, 2 remove, 3 speed
  int number;
  std::int64_t prompt;
  std::int64_t cached;
  std::int64_t to_generate;
  double speed;
};

std::vector<Script> random_script(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  std::vector<Script> script;
  double at_ms = 0;
  int next = 0;
  for (int i = 0; i < 60; ++i) {
    at_ms += static_cast<double>(pick(400'000)) / 1000 + 0.0005;
    const auto what = static_cast<int>(pick(4));
    script.push_back({at_ms, what, what < 2 ? next++ : static_cast<int>(pick(next + 1)),
                      1 + pick(400), pick(2) * pick(500), 1 + pick(120),
                      pick(4) == 0 ? 0 : static_cast<double>(1 + pick(10)) / 10});
  }
  script.push_back({at_ms + 1, 3, 0, 0, 0, 0, 1.0});
  return script;
}

// Runs both; they must agree up to the rounding of jumps to nanoseconds.
void expect_agreement(const std::vector<Script>& script, bool is_stepwise, int* jumps) {
  Driver driver{is_stepwise};
  PlainEngine plain;
  for (const Script& one : script) {
    const auto now_ns = static_cast<Nanoseconds>(std::llround(one.at_ms * kMs));
    const auto now = static_cast<double>(now_ns);
    if (one.what < 2) {
      const std::int64_t context = one.prompt + one.cached;
      driver.add(one.number, one.prompt, context, one.to_generate, now_ns);
      plain.add(one.number, one.prompt, context, one.to_generate, now);
    } else if (one.what == 2) {
      CHECK_EQ(driver.remove(one.number, now_ns), plain.remove(one.number, now));
    } else {
      driver.run_until(now_ns);
      driver.engine.set_speed(one.speed, now_ns);
      plain.set_speed(one.speed, now);
    }
  }
  driver.run_until(1'000'000'000 * kMsNs);
  plain.run_until(1e15);
  CHECK_EQ(driver.finished.size(), plain.finished.size());
  for (std::size_t i = 0; i < plain.finished.size(); ++i) {
    CHECK_EQ(driver.finished[i].first, plain.finished[i].first);
    const double late = static_cast<double>(driver.finished[i].second) - plain.finished[i].second;
    CHECK(std::abs(late) < 50'000);
  }
  CHECK_EQ(driver.engine.tokens_generated(), plain.tokens);
  *jumps += driver.jumps;
}

TEST(jumps_agree_with_an_engine_that_takes_one_step_after_the_other) {
  std::mt19937_64 random{11};
  int jumps = 0;
  int steps = 0;
  for (int round = 0; round < 200; ++round) {
    const std::vector<Script> script = random_script(random);
    expect_agreement(script, false, &jumps);
    expect_agreement(script, true, &steps);
  }
  CHECK(steps > 2 * jumps);  // there were jumps
}

}  // namespace
