"""A small scenario, as text and as content, that tests change in one place."""

import copy
import re
from typing import Any

from rose_lab.sim.scenario.scenario import Scenario, scenario_from
from rose_lab.sim.scenario.yaml_file import parsed

TEXT = """\
name: small
model: Qwen3-8B
jobs:
  - name: lake
    algorithm: grpo
    mode: synchronous
    batch: 32
    group: 8
    context_tokens: 32768
    max_staleness: 0
    train_s: 20
    environment: {kind: named, name: frozen-lake}
dedicated: [{gpu: H800, count: 4}]
borrowed:
  - gpu: H800
    count: 4
    serving_model: Qwen2.5-7B
    slo: {ttft_ms: 500, tpot_ms: 150}
    traffic: {kind: synthetic, load: 0.25, minute_peak: 1.2, second_peak: 4, wave_s: 600}
    domain_gpus: 2
trainer: {gpu: H800, count: 4, tp: 4}
network: {link_gbit_per_s: 100, changed_share: 0.03}
prices: {dedicated: 2, trainer: 3, borrowed: 0.5, opportunity: 0.25}
horizon_s: 600
versions: 2
arms: [rose, resource-fixed]
"""


def content() -> dict[str, Any]:
    return parsed(TEXT)


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the content with one field set, as `jobs[0].batch` names it."""
    made = copy.deepcopy(content())
    *steps, last = [int(one) if one.isdigit() else one for one in re.findall(r"\w+", path)]
    at: Any = made
    for step in steps:
        at = at[step]
    at[last] = value
    return made


def scenario(**fields: object) -> Scenario:
    """Return the small scenario with some fields of the top changed."""
    return scenario_from({**content(), **fields})
