"""Randomly drawn scenarios for judging. A seed defines a scenario; a file lists the seeds.

The table has the ranges and their reasons. Ranges and seeds were fixed before any policy was tuned
on them. Change neither to make a result look better. "Log" means that the logarithm is drawn
uniformly.

============================  ==============================  ======================================
what                          range                           because
============================  ==============================  ======================================
model                         4B, 8B, 14B, 32B                one tenant trains these on its own
GPUs of an engine (tp)        1 below 14B, 2 at 14B, 4 above; weights leave room for contexts
                              twice as many of the L40S
dedicated GPUs                2-64, log, whole engines        a node's quarter to eight nodes
borrowed over dedicated GPUs  0.5-4, log, whole engines       the paper lends 2x and 4x
GPU types                     one of four, or two of them     the paper's fleet is of one type; real
                                                              ones are mixed (H100, A100, L40S)
serving's load                0.1-0.85                        0.19 is the paper's mean; 0.85 is a
                                                              fleet without spare GPUs
busiest minute over the mean  1.2-3, log, load permitting     1.5 Azure, 1.7 the paper, 3.2 ServeGen
busiest second over minute    1.5-10, log                     1.9 Azure chats, 2.5 the paper; code
                                                              assistants' bursts are worse
wave of the load              10-60 minutes                   stands for the wave of a whole day
batch                         32-1024, log, whole groups      32 is PEARL's least, 1024 the paper's
                                                              largest
group                         4, 8, 16                        GRPO as it is run
context                       8-64 Ki tokens                  the paper and PEARL have 32 Ki
turns                         median 2-24, sigma 0.3-1        games to coding agents
first prompt                  median 256-4096 tokens, log     a sentence to a file
input of a turn               median 64-2048, log             a game's board to a tool's output
output of a turn              median 48-768, log; sigma 0.4-1 a move to a chain of thought
tool waits                    median 0.01-10 s, log; a tail   86 % within 1 s, 95 % within 10 s are
                              of 1-10 % up to 120 s           measured of coding agents
group share, hardness         0-1, 0-0.5                      nobody has published them
mode                          each of the three               -
max staleness                 0-4; at least 1 off policy      beyond it corrections fail
training over rolling out     0.1-1, log                      25 % of a step in the paper; 76 % of
                                                              rolling out on many GPUs in PEARL
link                          1-200 Gb/s, log                 10-200 is the paper's; 1 is a WAN
share that changes            0.5-5 %, log                    public measurements: 0.9-3 %
crashes of whole domains      in a quarter, each domain about fleets update, drain and crash
                              every 5-120 minutes, log, for
                              10-300 s
revocations                   in a quarter, all that is lent  harder than one domain after another
                              at the same moments: lent for
                              5-120 minutes, log, then away
                              for 10-300 s
algorithm                     DAPO in a quarter, up to 3x     the paper's 5.7x is a worst case
============================  ==============================  ======================================

The size of a scenario is limited so that an arm of it takes seconds: turns of all versions stay
below `_TURNS_MAX`, by fewer versions and, where that is not enough, by a smaller batch.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rose.errors import InvalidArgument
from rose_lab.sim.scenario.scenario import Scenario, scenario_from

# Arms that the real scheduler can run with the same inputs.
ARMS: Final = (
    "rose", "resource-fixed", "least-loaded-sticky", "elastic", "reserved-share", "rose-published",
    "mlfq", "share-all",
)  # fmt: skip
_MODELS: Final = (("Qwen3-4B", 1), ("Qwen3-8B", 1), ("Qwen3-14B", 2), ("Qwen3-32B", 4))
_SERVING: Final = {1: "Qwen2.5-7B", 2: "Qwen2.5-14B", 4: "Qwen2.5-32B"}
# TTFT and TPOT in ms: the paper's for 7B and 32B, interpolated for 14B.
_SLO: Final = {1: (500.0, 150.0), 2: (700.0, 250.0), 4: (1000.0, 450.0)}
_GPUS: Final = ("H100", "H800", "A100", "L40S")
_SMALL_GPU: Final = "L40S"  # 48 GB: two of them hold as much as one GPU of another type
_MODES: Final = ("synchronous", "one-step-off", "asynchronous")
_TURNS_MAX: Final = 40_000
_VERSIONS: Final = (3, 6)  # minimum and maximum
_LOAD_PEAK_MAX: Final = 0.95  # of the busiest minute, because serving alone must meet its targets
# For an estimate of a batch's duration: tokens that an H800 prefills and decodes per second with 8
# B parameters, the factors of the other GPUs, the seconds per token and per tool call, and the
# longest trajectory divided by the mean. Only the training time and the horizon depend on the
# estimate.
_TOKENS_PER_S: Final = 3000.0
_PROMPT_TOKENS_PER_S: Final = 25_000.0
_SPEED: Final = {"H100": 1.0, "H800": 1.0, "A100": 0.4, "L40S": 0.26}
_SIZE: Final = {"Qwen3-4B": 0.5, "Qwen3-8B": 1.0, "Qwen3-14B": 1.8, "Qwen3-32B": 4.0}
_TOKEN_S: Final = 0.015
_TOOL_S: Final = 1.0
_LONGEST: Final = 4.0


def drawn(seed: int) -> Scenario:
    """Return the scenario of a seed, >= 0; it is the same in every run and on every machine."""
    return scenario_from(drawn_content(seed))


def read_seeds(path: Path) -> tuple[int, ...]:
    """Return the seeds of a file, one per line; a line that starts with # is a comment.

    Raises:
        InvalidArgument: the file cannot be read, has a line that is no seed, or repeats a seed.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"cannot read {path}: {error}") from None
    seeds: dict[int, None] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if not (line.isascii() and line.isdigit()) or int(line) in seeds:
            raise InvalidArgument(
                f"{path} line {number}: {line!r} is not a seed, or is listed twice"
            )
        seeds[int(line)] = None
    return tuple(seeds)


def drawn_content(seed: int) -> dict[str, Any]:
    """Return the content of the scenario file of a drawn scenario."""
    random = np.random.default_rng((20_260_509, seed))
    model, tp = _one(random, _MODELS)
    kinds = _gpu_kinds(random)
    dedicated = _dedicated(kinds[0], _log(random, 2, 64), tp)
    borrowed = dedicated["count"] * _log(random, 0.5, 4) / len(kinds)
    speed = _SPEED[kinds[0]] * dedicated["count"] + borrowed / 2 * sum(_SPEED[one] for one in kinds)
    job, versions, rollout_s = _job(random, speed=speed / _SIZE[model])
    return {
        "name": f"drawn-{seed}",
        "about": "Drawn at random from documented ranges.",
        "model": model,
        "seeds": [seed],
        "jobs": [job],
        "dedicated": [dedicated],
        "borrowed": [_borrowed(random, gpu, borrowed, tp) for gpu in kinds],
        "network": {
            "link_gbit_per_s": _log(random, 1, 200),
            "changed_share": _log(random, 0.005, 0.05),
        },
        "stress": _stress(random),
        # Long enough for a policy that is eight times slower than estimated.
        "horizon_s": math.ceil(8 * versions * (job["train_s"] + rollout_s)) + 1800,
        "versions": versions,
        "arms": list(ARMS),
    }


def _job(random: np.random.Generator, *, speed: float) -> tuple[dict[str, Any], int, float]:
    """Return the job, its versions, and an estimate of a batch's rollout time in seconds."""
    group = int(_one(random, (4, 8, 16)))
    batch = round(_log(random, 32, 1024) / group) * group
    environment, turns, input_, output = _environment(random)
    is_dapo = random.random() < 0.25
    redundancy = 1.5 if is_dapo else 1.0  # the mean for a log-uniform distribution up to 3
    per_version = batch * turns * redundancy
    versions = int(np.clip(_TURNS_MAX // per_version, *_VERSIONS))
    if per_version * versions > _TURNS_MAX:
        batch = max(1, int(_TURNS_MAX / (turns * redundancy * versions * group))) * group
    mode = str(_one(random, _MODES))
    turn_s = (output / _TOKENS_PER_S + input_ / _PROMPT_TOKENS_PER_S) / speed
    bulk_s = batch * redundancy * turns * turn_s
    rollout_s = max(bulk_s, _LONGEST * turns * (output * _TOKEN_S + _TOOL_S))
    job: dict[str, Any] = {
        "name": "job",
        "algorithm": "dapo" if is_dapo else "grpo",
        "mode": mode,
        "batch": batch,
        "group": group,
        "context_tokens": int(_one(random, (8, 16, 24, 32, 48, 64))) << 10,
        "train_s": _rounded(rollout_s * _log(random, 0.1, 1)),
        "environment": environment,
        "max_staleness": int(random.integers(0 if mode == "synchronous" else 1, 5)),
    }
    if is_dapo:
        job["redundancy"] = {"kind": "log-uniform", "least": 1, "most": 3}
    return job, versions, rollout_s


def _environment(random: np.random.Generator) -> tuple[dict[str, Any], float, float, float]:
    """Return the environment, and the means of its turns, of their input tokens and of their output
    tokens.
    """
    turns, turns_sigma = _log(random, 2, 24), _uniform(random, 0.3, 1)
    output, output_sigma = _log(random, 48, 768), _uniform(random, 0.4, 1)
    input_, input_sigma = _log(random, 64, 2048), _uniform(random, 0.2, 0.8)
    tail = _uniform(random, 0.01, 0.1)
    environment = {
        "kind": "drawn",
        "turns": _lognormal(turns, turns_sigma),
        "first_input": _lognormal(_log(random, 256, 4096), 0.3),
        "input": _lognormal(input_, input_sigma),
        "output": _lognormal(output, output_sigma),
        "tool_s": {
            "kind": "mixture",
            "parts": [
                {"weight": round(1 - tail, 6), "of": _lognormal(_log(random, 0.01, 10), 0.8)},
                {"weight": tail, "of": {"kind": "pareto", "least": 5, "alpha": 1.2, "most": 120}},
            ],
        },
        "turns_max": 100,
        "group_share": _uniform(random, 0, 1),
        "hardness": _uniform(random, 0, 0.5),
    }
    means = (_mean(turns, turns_sigma), _mean(input_, input_sigma), _mean(output, output_sigma))
    return environment, *means


def _borrowed(random: np.random.Generator, gpu: str, gpus: float, tp: int) -> dict[str, Any]:
    load = _uniform(random, 0.1, 0.85)
    minute = min(_log(random, 1.2, 3), max(1.0, _rounded(_LOAD_PEAK_MAX / load)))
    ttft_ms, tpot_ms = _SLO[tp]
    return {
        **_dedicated(gpu, gpus, tp),
        "serving_model": _SERVING[tp],
        "slo": {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms},
        "traffic": {
            "kind": "synthetic",
            "load": load,
            "minute_peak": minute,
            "second_peak": _rounded(minute * _log(random, 1.5, 10)),
            "wave_s": _uniform(random, 600, 3600),
            # Azure's conversations have means of 1,155 and 211 tokens.
            "prompt_tokens": {**_lognormal(928, 0.66), "most": 16_384},
            "output_tokens": {**_lognormal(174, 0.62), "most": 2048},
        },
    }


def _dedicated(gpu: str, gpus: float, tp: int) -> dict[str, Any]:
    tp = 2 * tp if gpu == _SMALL_GPU else tp
    return {"gpu": gpu, "count": max(1, round(gpus / tp)) * tp, "tp": tp, "domain_gpus": 8}


def _stress(random: np.random.Generator) -> list[dict[str, Any]]:
    kind, every_s, for_s = random.random(), _log(random, 300, 7200), _log(random, 10, 300)
    if kind < 0.25:
        return [{"kind": "engine-crashes", "every_s": every_s, "down_s": for_s}]
    if kind < 0.5:
        return [{"kind": "flapping", "lent_s": every_s, "away_s": for_s}]
    return []


def _gpu_kinds(random: np.random.Generator) -> list[str]:
    chosen = random.permutation(len(_GPUS))[: int(random.integers(1, 3))]
    return [_GPUS[at] for at in chosen]


def _one(random: np.random.Generator, of: Sequence[Any]) -> Any:
    return of[int(random.integers(len(of)))]


def _uniform(random: np.random.Generator, least: float, most: float) -> float:
    return _rounded(float(random.uniform(least, most)))


def _log(random: np.random.Generator, least: float, most: float) -> float:
    return _rounded(math.exp(random.uniform(math.log(least), math.log(most))))


def _rounded(value: float) -> float:
    """Round to four digits, because the last digits of exp differ between machines."""
    return float(f"{value:.4g}")


def _lognormal(median: float, sigma: float) -> dict[str, object]:
    return {"kind": "lognormal", "median": median, "sigma": sigma}


def _mean(median: float, sigma: float) -> float:
    return median * math.exp(sigma**2 / 2)
