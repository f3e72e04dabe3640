// Runs every kernel under ThreadSanitizer, then again for each barrier that an argument names, with
// that barrier left out: `races block_scan.h:45 …`. Prints what tests/kernels/races.py reads.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "cuda_on_cpu.h"

// clang-format off
#include "delta_apply.cu"
#include "delta_pack.cu"
#include "digest.cu"
#include "topk_pack.cu"
#include "topk_unpack.cu"
// clang-format on

using namespace rose::kernels;
using cuda_on_cpu::Barriers;

namespace {

volatile unsigned reports = 0;

}  // namespace

// The sanitizer calls it for each race. From then on every barrier orders again: one race is enough
// to know, and each costs a report.
extern "C" CUDA_ON_CPU_UNSEEN void __tsan_on_report(void*) {
  reports = reports + 1;
  Barriers::all().left_out[0] = '\0';
}

namespace {

struct Scenario {
  u32 width;
  u32 block_elements;
  double changed;  // share of elements
  double far;      // share of the changes with a size other than 1
  bool has_top_k;
};

// Every encoding of a block (GAP, BITMAP, RAW), lists of some changes and of all of them,
// large magnitudes, blocks of both sizes, ages and a threshold.
constexpr Scenario kScenarios[] = {
    {16, 16384, 0.02, 0.0, false}, {16, 16384, 0.02, 0.2, false}, {16, 16384, 0.01, 0.2, true},
    {16, 65536, 0.02, 1.0, false}, {16, 16384, 0.3, 0.05, false}, {32, 16384, 0.02, 0.5, false},
    {8, 16384, 1.0, 1.0, false},
};

Divisor divisor(u64 number) {
  if (number < 2) return {number, 0, 0};
  const u64 shift = 63 - static_cast<u64>(__builtin_clzll(number - 1));
  const unsigned __int128 top = static_cast<unsigned __int128>(1) << (64 + shift);
  return {number, static_cast<u64>((top + number - 1) / number), shift};
}

Box flat(std::vector<u8>& bytes, u64 count) {
  return {bytes.data(), {divisor(1), divisor(1), divisor(count)}, {0, 0, 0, 1}};
}

template <typename Params>
void run(void (*kernel)(Params), const Params& params, u64 blocks, u32 threads) {
  static unsigned seed = 0;
  const std::string error = cuda_on_cpu::Cta::current().run(static_cast<unsigned>(blocks), threads,
                                                            cuda_on_cpu::Order::kShuffled, ++seed,
                                                            [kernel, &params] { kernel(params); });
  if (!error.empty()) {
    std::printf("stuck: %s\n", error.c_str());
    std::exit(2);
  }
}

void need(bool is_right, const char* what) {
  if (is_right) return;
  std::printf("wrong: %s\n", what);
  std::exit(3);
}

struct Arrays {
  std::vector<u8> now, old;
};

Arrays draw(const Scenario& scenario, u64 count) {
  std::mt19937_64 random{7};
  const u32 bytes = scenario.width / 8;
  Arrays out{std::vector<u8>(count * bytes), std::vector<u8>(count * bytes)};
  const auto has = [&](double share) {
    return static_cast<double>(random() >> 11) * 0x1p-53 < share;
  };
  for (u64 i = 0; i < count; ++i) {
    u32 from = static_cast<u32>(random());
    // Weights of a model: of one sign and exponent or the next.
    if (scenario.width == 16) from = (random() % 2 << 15) | (115 + random() % 4) << 7 | from % 128;
    u32 to = from;
    if (has(scenario.changed)) {
      u32 by = 1;
      if (has(scenario.far)) by = has(0.05) ? 40 + static_cast<u32>(random() % 60) : 2 + from % 3;
      to = has(0.5) ? from + by : from - by;
      if (scenario.changed == 1.0) to = static_cast<u32>(random());  // RAW
    }
    std::memcpy(&out.old[i * bytes], &from, bytes);
    std::memcpy(&out.now[i * bytes], &to, bytes);
  }
  return out;
}

u32 threshold_of(Arrays& arrays, u64 count, const std::vector<u8>& ages) {
  std::vector<u64> histogram(kHistogramBins, 0);
  u32 threshold = 0;
  run(topk_histogram_kernel,
      TopkHistogramParams{flat(arrays.now, count), flat(arrays.old, count), count, ages.data(), 3,
                          histogram.data()},
      2, kHistogramThreads);
  run(topk_threshold_kernel, TopkThresholdParams{histogram.data(), count / 300, &threshold}, 1,
      kThresholdThreads);
  return threshold;
}

void run_codec(const Scenario& scenario) {
  const u64 block = scenario.block_elements;
  const u64 count = block + block / 2 + 77;
  const u64 blocks = (count + block - 1) / block;
  const u32 threads = static_cast<u32>(block) / kElementsOfThread;
  Arrays arrays = draw(scenario, count);
  std::vector<u8> ages(count, 0), shadow = arrays.old;
  for (u64 i = 0; i < count; ++i) ages[i] = static_cast<u8>(i % 5 == 0 ? 3 : 0);
  const u32 threshold = scenario.has_top_k ? threshold_of(arrays, count, ages) : 0;

  std::vector<u32> arena(blocks * block * scenario.width / 32);
  std::vector<u64> entries(blocks), offsets(blocks + 1), firsts(blocks);
  u64 newest = 0, bad = ~u64{0};
  std::array<u64, 2> packed{};
  const auto params_of = [&](u64 elements) {
    newest = ~u64{0};
    std::fill(offsets.begin(), offsets.end(), ~u64{0});
    return DeltaPackParams{flat(arrays.now, elements),
                           flat(shadow, elements),
                           scenario.width,
                           elements,
                           block,
                           scenario.has_top_k ? &threshold : nullptr,
                           scenario.has_top_k ? ages.data() : nullptr,
                           3,
                           arena.data(),
                           arena.size(),
                           &newest,
                           0,
                           entries.data(),
                           offsets.data(),
                           packed.data(),
                           0,
                           5};
  };
  const auto digest_of = [&](std::vector<u8>& bytes, u64 seed = 5) {
    std::array<u64, 2> sums{};
    run(digest_kernel,
        DigestParams{flat(bytes, count), scenario.width, count, 0, seed, sums.data()}, 2,
        kDigestThreads);
    return sums;
  };
  const std::array<u64, 2> before = digest_of(shadow);
  if (scenario.width == 16) {
    packed = before;
    const DeltaPackParams one = params_of(count);
    // Two arrays, of which the second one begins with the second block.
    const DeltaPackFlatParams two{
        2,
        one.threshold,
        one.arena,
        one.arena_words,
        one.newest,
        0,
        one.seed,
        {{reinterpret_cast<u16*>(one.bits.base), reinterpret_cast<u16*>(one.shadow.base), block, 0,
          one.entries, one.offsets, one.digest, 0},
         {reinterpret_cast<u16*>(one.bits.base) + block,
          reinterpret_cast<u16*>(one.shadow.base) + block, count - block, 1, one.entries + 1,
          one.offsets + 1, one.digest, block}}};
    run(block == kBlockMax ? delta_pack_flat_64k_kernel : delta_pack_flat_16k_kernel, two, blocks,
        threads);
    need(packed == digest_of(shadow), "the digest of the flat pack is not that of the shadow");
    shadow = arrays.old;
  }
  packed = before;
  run(block == kBlockMax ? delta_pack_kernel : delta_pack_16k_kernel, params_of(count), blocks,
      threads);

  const u64 words = offsets[blocks];
  for (const bool has_digest : {false, true}) {
    std::vector<u8> weights = arrays.old;
    std::array<u64, 2> applied = digest_of(weights, 0);
    const DeltaApplyParams one{1,
                               block,
                               &bad,
                               0,
                               {{entries.data(), offsets.data(), arena.data(), words,
                                 flat(weights, count), scenario.width, count, 0, applied.data()}}};
    run(has_digest ? delta_apply_digest_kernel : delta_apply_kernel, one, blocks,
        threads_to_read(block));
    need(bad == ~u64{0} && weights == shadow, "apply does not make the shadow");
    need(packed == digest_of(weights), "the digest of the pack is not that of the shadow");
    need(!has_digest || applied == digest_of(weights, 0),
         "the digest of the apply is not that of the shadow");
  }

  u64 changed = 0;
  for (u64 i = 0; i < blocks; ++i) {
    firsts[i] = changed;
    changed += to_entry(entries[i]).changed;
  }
  std::vector<std::int64_t> positions(changed + 1);
  std::vector<u8> values((changed + 1) * scenario.width / 8);
  run(topk_unpack_kernel,
      TopkUnpackParams{entries.data(), offsets.data(), firsts.data(), arena.data(), words,
                       flat(arrays.old, count), scenario.width, count, block, positions.data(),
                       values.data(), changed, &bad},
      blocks, threads_to_read(block));
  need(bad == ~u64{0}, "unpack finds a bad block");
}

// Ends early once there is a race.
void run_all() {
  for (const Scenario& one : kScenarios) {
    if (reports == 0) run_codec(one);
  }
}

}  // namespace

int main(int count, char** names) {
  run_all();
  for (const std::string& name : Barriers::all().reached) std::printf("reached %s\n", name.c_str());
  std::printf("races %u\n", static_cast<unsigned>(reports));
  for (int i = 1; i < count; ++i) {
    reports = 0;
    Barriers::all().left_out = names[i];
    run_all();
    std::printf("%s %s\n", reports > 0 ? "found" : "missed", names[i]);
    std::fflush(stdout);
  }
  return 0;
}
