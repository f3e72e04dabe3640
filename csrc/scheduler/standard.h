// The constants of the scheduler, the reason for each value, and the names that trials set them by.
//
// "The drawn scenarios" are those of `bench.drawn`; what they said is in
// bench/results/drawn-200.json. "The paper" is ROSE (arXiv 2605.06534).
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
    // Versions between the start of a trajectory and its use. One is where most off-policy
    // corrections stop hurting.
    .max_staleness = 1,
    // Trajectories that the trainer uses for one version.
    .batch_trajectories = 8,
    // A worker that is more versions behind the newest gets no turns. One lets it work while a new
    // version is on its way.
    .worker_lag_max = 1,
    // Grace period during which output of a recalled turn is still accepted. Must exceed the
    // reporting latency. Each millisecond delays the turn, each lost token is generated again.
    .recall_grace_ns = 200 * kMs,
    // A turn that left a worker unfinished does not come back under the same lease for so long:
    // longer than a doubled report may be late.
    .retry_ns = 500 * kMs,
    // A turn that failed so often is not tried again, and its trajectory is dropped.
    .attempts_max = 3,
    // A borrowed worker without progress for so long, beyond the time for its prompts, has stalled.
    // The paper waits two seconds; among the drawn scenarios, prompts that wait for others looked
    // like that, and ten lost nothing.
    .stall_ns = 10 * kSeconds,
    // A turn that waits longer comes before all others, and room is kept for it; a turn takes
    // seconds, so one that waits for so long was passed over many times.
    .wait_max_ns = 30 * kSeconds,
    // When so many seats for each live trajectory are free, all of them are urgent: with two there
    // is room for each, and a choice besides. 0: always, 1e9: never.
    .tail_seats = 2,
    // Extra weight of its own time, and of its revocation risk, for an urgent turn; others weigh 1.
    .urgent_time_weight = 1,
    .urgent_risk_weight = 1,
    // Seconds that a fresher worker is worth, per version.
    .staleness_s_per_version = 0.5,
    // A turn leaves the cache it is used to for more than this only: predictions are wrong by as
    // much, and a moved prompt is computed again.
    .leave_home_margin_s = 0.3,
    // Prior rate of revocations of a borrowed lease.
    .hazard_per_s = 1.0 / 60,
    // Weight of that prior, as seconds of observed leases: a domain's against its observations, and
    // a worker's domain against the worker's. Five minutes follow a change of load and ride out one
    // burst.
    .hazard_prior_s = 300,
    // Older observations fade; load follows the hours of the day.
    .hazard_window_s = 3600,
    // A lease gets no turns for so long when it was revoked twice within the flap window, and for
    // twice as long with each time more: a prompt that is computed and lost costs more than the
    // wait. It never waits longer than the most.
    .hold_min_ns = 1 * kSeconds,
    .hold_max_ns = 30 * kSeconds,
    // Revocations of one worker that are closer than this are flapping.
    .flap_window_ns = 10 * kSeconds,
    // A borrowed worker gets no turn that would lift what its domain's turns cost the survivors,
    // were they all taken back at once, above this. Half a minute of them is a small part of what a
    // trainer takes for a version.
    .exposure_max_s = 30,
    // Of a job's urgent turns, at most so many are in one borrowed domain, in (0, 1]. The trainer
    // waits for these.
    .urgent_share_max = 0.75,
    // Of prompts that come back after a revocation, a worker computes at most so many at once, or
    // one, so that decodes go on between them: about a second of an 8B model on one device.
    .burst_prefill_tokens = 32'768,
    // A job may lead another one that waits for the same shared device by so many tokens per unit
    // of weight. More keeps turns at their caches, less shares more evenly.
    .fair_lead_tokens = 16'384,
    // Delay of a revoked turn until its next worker takes it, without its prompt: the report takes
    // milliseconds, and a busy engine takes the turn after a step or two.
    .requeue_s = 0.1,
    // Mean length of a turn before any has finished, and mean turns of a trajectory; each counts
    // for one observation, so a wrong guess is soon forgotten.
    .turn_tokens_prior = 128,
    .turns_prior = 4,
    // Prior time per token, with prompts and the wait for a worker: the step of a busy engine.
    .token_s_prior = 0.03,
    // Mean time of a tool before one was seen; most tools answer within a second.
    .tool_s_prior = 1,
    // Weight of a job's observations against those of one of its groups. Two, as members of a group
    // are much alike.
    .job_weight = 2,
    // Turns, tools and trajectories that predictions remember; enough to be steady, few enough to
    // follow a policy that learns to be brief.
    .turn_window = 256,
    // Intervals between versions that their mean remembers.
    .version_window = 8,
    // The part of turns that stay within their first reservation; 1 reserves all that a turn may
    // say. When one grows beyond it and its worker has no room, the turn there that is cheapest to
    // move goes elsewhere.
    .reserve_quantile = 0.9,
    // A reservation stays so far ahead of what a turn is known to have said: more than it says
    // until another's Stop has freed room for it. 64 steps take more than a second.
    .reserve_ahead_tokens = 64,
    // Seconds of waiting that each second left of a trajectory is worth in the queue, twice that
    // for the most urgent. One lets the longest of them begin first, and a short one wait no longer
    // than the longest takes. 0 is first come, first served.
    .longest_first = 1,
    // Learning rate of a worker's pace, in [0, 1). A turn that takes longer than the worker's
    // figures predict lowers the pace, a shorter one raises it. The pace stands for what serving
    // leaves of the worker and for all that the figures do not say. 0 believes the figures.
    .pace_rate = 0.1,
    // Of trajectories, so many may lose a cache for want of room, in (0, 1]; with more of them
    // fewer are admitted, with less more. Contexts grow: a batch that fits at its start may not fit
    // half an hour later, and computes the same again and again. A fifth lost the least among drawn
    // scenarios. 1 admits all that staleness allows.
    .displaced_share = 0.2,
    // For so long after it was queued a turn waits rather than push out the cache of another,
    // except at its warm home: whoever comes back for it would push out the next. Only kJoint
    // waits. The longer the better, among drawn scenarios; four minutes is where the gain of longer
    // ones is small. 0: it never waits.
    .cache_wait_ns = 240 * kSeconds,
    // Until it has starved, a turn leaves a warm cache only for a worker that lends so many mean
    // final contexts for each trajectory that lives there, this one included. Contexts grow, and
    // some to twice the mean; where they do not fit, each turn pushes out the next one's cache. 0:
    // it moves anywhere.
    .move_contexts = 2,
    // Tokens that a trajectory generates before kMlfq puts it a level lower; each further level
    // takes as many as all before. A few turns of a short trajectory: with fewer tokens all are
    // soon low, with more the long ones are not told apart.
    .mlfq_quantum_tokens = 1024,
};

// Changes one value by its name; times are named and given in milliseconds. On error nothing has
// changed.
Status tune(Settings& settings, std::string_view name, double value);

// All values by the names that `tune` knows, in the order of the struct.
std::vector<std::pair<std::string_view, double>> tuned(const Settings& settings);

}  // namespace rose::scheduler
