// The scheduler's standard settings, the reason for each value, and their names for trials.
//
// "The drawn scenarios" are those of bench/lab/suites/drawn.py, with results in drawn-200.json.
// "The paper" is ROSE (arXiv 2605.06534). A prior is the value that an estimate has before any
// observation. A worker has one seat for each turn that it may run at a time. The home of a turn is
// the worker whose cache has the context of its trajectory; the home is warm while that cache is
// valid.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "scheduler/settings.h"

namespace rose::scheduler {

inline constexpr Nanoseconds kMs = 1'000'000;
inline constexpr Nanoseconds kSeconds = 1000 * kMs;

inline constexpr Settings kStandard{
    // Most versions between the start of a trajectory and its use. With one, most off-policy
    // corrections learn as well as without staleness.
    .max_staleness = 1,
    // Trajectories that the trainer uses for one version.
    .batch_trajectories = 8,
    // A worker that is more than this many versions behind the newest gets no turns. With 1 it can
    // run turns while a new version is being sent.
    .worker_lag_max = 1,
    // Grace period during which output of a recalled turn is still accepted. Must exceed the
    // reporting latency. A longer period delays the turn; after a shorter one, more tokens are lost
    // and generated again.
    .recall_grace_ns = 200 * kMs,
    // Time for which an unfinished turn does not return to the grant that it left. Must exceed the
    // delay of a duplicate report.
    .retry_ns = 500 * kMs,
    // After this many failures of a turn, its trajectory is dropped.
    .attempts_max = 3,
    // A turn whose worker was lost this many times in a row, each time before the turn had a token
    // there, may be what kills its workers; its trajectory is dropped.
    .losses_max = 2,
    // A borrowed worker counts as stalled after this time without progress, in addition to the time
    // for its prompts. The paper waits two seconds. In the drawn scenarios, two seconds were too
    // short for prompts that waited for other prompts, and ten seconds cost nothing.
    .stall_ns = 10 * kSeconds,
    // A turn that waits longer comes before all others, and room is kept for it. Turns take
    // seconds, so such a turn was passed over many times.
    .wait_max_ns = 30 * kSeconds,
    // With more than this many free seats per live trajectory, all turns have urgency 1: two seats
    // leave each turn a choice. 0: always, 1e9: never.
    .tail_seats = 2,
    // Extra weights of an urgent turn's own time and revocation risk, which otherwise weigh 1.
    .urgent_time_weight = 1,
    .urgent_risk_weight = 1,
    // Cost in seconds per version that a worker is behind.
    .staleness_s_per_version = 0.5,
    // A turn leaves its cache only for a gain above this many seconds. Predictions have errors of
    // this size, and a moved prompt is computed again.
    .leave_home_margin_s = 0.3,
    // Prior revocation rate of a borrowed grant.
    .hazard_per_s = 1.0 / 60,
    // Weight of a prior, in seconds of observed grants. hazard_per_s is the prior of a domain, and
    // a domain's estimate is the prior of its workers. With five minutes, estimates follow a change
    // of load and smooth out a single burst.
    .hazard_prior_s = 300,
    // Older observations fade, since load changes with the hours of the day.
    .hazard_window_s = 3600,
    // Hold time: after the second revocation within the flap window, a worker gets no turns for the
    // minimum time. Each further revocation doubles this time, up to the maximum. A prompt that is
    // computed and lost costs more than the wait.
    .hold_min_ns = 1 * kSeconds,
    .hold_max_ns = 30 * kSeconds,
    // Maximum time between two revocations of a worker that count as flapping.
    .flap_window_ns = 10 * kSeconds,
    // Limit of the time that the job's workers in other domains would need to recompute all turns
    // of a borrowed domain. A domain with turns gets no turn that would exceed the limit. Half a
    // minute is a small part of a trainer's time per version.
    .exposure_max_s = 30,
    // Maximum share, in (0, 1], of a job's urgent turns in one borrowed domain. The trainer waits
    // for urgent turns.
    .urgent_share_max = 0.75,
    // Maximum tokens of restarted prompts that a worker computes at once, so that decodes continue:
    // about a second of an 8B model on one device. A single prompt may exceed the maximum.
    .burst_prefill_tokens = 32'768,
    // Maximum lead of a job over another job that waits for the same device, in tokens per unit of
    // weight. A larger value keeps more turns at their caches; a smaller value shares more evenly.
    .fair_lead_tokens = 16'384,
    // Expected delay of a revoked turn until its next worker starts its prompt: the report takes
    // milliseconds, and a busy engine starts the turn after a step or two.
    .requeue_s = 0.1,
    // Prior means of tokens per turn and turns per trajectory; each counts as one observation, so a
    // wrong guess is soon corrected.
    .turn_tokens_prior = 128,
    .turns_prior = 4,
    // Prior time per token, including prompts and queueing: a step of a busy engine.
    .token_s_prior = 0.03,
    // Prior mean duration of a tool; most tools answer within a second.
    .tool_s_prior = 1,
    // Weight of a job's observations in the prediction of a group, in observations of the group. It
    // is low, as members of a group are much alike.
    .job_weight = 2,
    // Number of turns, tools and trajectories that predictions remember: enough to be steady, few
    // enough to follow a policy that learns to be brief.
    .turn_window = 256,
    // Number of intervals between versions that their mean remembers.
    .version_window = 8,
    // Share of turns that stay within their first reservation; 1 reserves each turn's token limit.
    // When a turn outgrows its reservation on a full worker, the turn that is cheapest to move
    // leaves that worker.
    .reserve_quantile = 0.9,
    // Tokens by which a reservation stays ahead of a turn's known output: more than the turn
    // generates until another turn's Stop frees room. 64 steps take more than a second.
    .reserve_ahead_tokens = 64,
    // Queue credit in seconds of waiting per second of a trajectory's remaining time, doubled for
    // the most urgent. With 1 the longest trajectories start first, and a short one waits at most
    // for the duration of the longest. 0 is first come, first served.
    .longest_first = 1,
    // Learning rate of a worker's pace, in [0, 1). A turn that takes longer than the worker's
    // figures predict makes the worker count as slower; a shorter turn makes it count as faster.
    // That covers interference by serving and all other errors of the figures. 0 trusts the
    // figures.
    .pace_rate = 0.1,
    // Target share, in (0, 1], of trajectories that lose a cache for lack of memory. While the
    // observed share is higher, fewer trajectories are admitted. Contexts grow, so a batch that
    // fits at its start may not fit half an hour later, and then recomputes contexts repeatedly. A
    // fifth was best in the drawn scenarios. 1 admits all that staleness allows.
    .displaced_share = 0.2,
    // Time after queueing for which a turn waits rather than evict another's cache, except at its
    // warm home: the evicted trajectory would in turn evict the next. Only kJoint waits. In the
    // drawn scenarios longer was better, with little gain beyond four minutes. 0: never waits.
    .cache_wait_ns = 240 * kSeconds,
    // Until a turn has starved, it leaves a warm cache only for a worker that lends this many mean
    // final contexts per resident trajectory, this one included. Contexts grow, some to twice the
    // mean; where they do not fit, each turn evicts the next one's cache. 0: moves anywhere.
    .move_contexts = 2,
    // Output tokens of a trajectory in the first level of kMlfq; each further level is as wide as
    // all before it. A short trajectory has about that many in a few turns. With fewer, all
    // trajectories would soon leave the first levels; with more, long ones would stay there too.
    .mlfq_quantum_tokens = 1024,
};

// Changes one value by name; times have names and values in milliseconds. An error changes nothing.
Status tune(Settings& settings, std::string_view name, double value);

// All values by the names of `tune`, in the order of the struct.
std::vector<std::pair<std::string_view, double>> tuned(const Settings& settings);

}  // namespace rose::scheduler
