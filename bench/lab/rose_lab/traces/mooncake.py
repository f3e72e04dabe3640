"""Read Mooncake traces: one JSON object a line (kvcache-ai/Mooncake, FAST25-release, Apache-2.0).

Timestamps of these traces come in steps of three seconds. Replayed unchanged, all requests of a
step would arrive at once, a burst that the service never saw. So if every timestamp of a file is a
multiple of the step, each request moves to a uniformly random time in its step, as in a Poisson
process with a known count. Other timestamps are used unchanged.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from rose.errors import InvalidArgument
from rose_lab.traces.requests import Requests
from rose_lab.traces.text_file import quoted
from rose_lab.traces.trace import TOKENS_MAX, Trace

STEP_MS: Final = 3000

_KEYS: Final = ("timestamp", "input_length", "output_length")
_EXPECTED: Final = (
    'expected one JSON object a line, such as {"timestamp": 3000, "input_length": 6955, '
    '"output_length": 52, "hash_ids": [46]} (Mooncake trace)'
)
_MS_PER_S: Final = 1000
# 300 years: a larger number is damaged, and arithmetic with it would lose the milliseconds.
_TIMESTAMP_MAX: Final = 10_000_000_000_000


def read_mooncake(path: Path, lines: Iterable[str], *, seed: int = 0) -> Trace:
    """Read one request per line; blank lines, `hash_ids` and unknown keys are ignored.

    Args:
        path: file name, for messages and the name of the trace.
        lines: lines of the whole file; timestamps ascend, and the first step starts at 0 s.
        seed: seed of the times inside the steps; equal seeds give equal traces.

    Raises:
        InvalidArgument: a line is malformed (the message numbers it), or there are no requests.
    """
    requests = Requests(path, _KEYS[0])
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        fields = _fields(path, line, text)
        at_ms = fields["timestamp"]
        if not (_is_number(at_ms) and 0 <= at_ms <= _TIMESTAMP_MAX):
            raise InvalidArgument(
                f"{path} line {line}: timestamp is {quoted(json.dumps(at_ms))}; "
                f"give milliseconds from 0 to {_TIMESTAMP_MAX}"
            )
        lengths = [_tokens(path, line, key, fields[key]) for key in _KEYS[1:]]
        requests.add(line, at_ms, str(at_ms), *lengths)
    if not all(at_ms % STEP_MS == 0 for at_ms in requests.arrivals):
        return requests.traced(requests.since_first() / _MS_PER_S)
    places_ms = np.random.default_rng(seed).random(len(requests.arrivals)) * STEP_MS
    steps_ms = requests.since_first()
    # Steps do not overlap, so sorting reorders only within a step.
    arrival_s = np.sort(steps_ms + places_ms) / _MS_PER_S
    last_ms = steps_ms[-1] if steps_ms.size else 0.0
    return requests.traced(arrival_s, span_s=float(last_ms + STEP_MS) / _MS_PER_S)


def _fields(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):  # Thousands of digits or brackets raise these too.
        fields = None
    if not isinstance(fields, dict):
        raise InvalidArgument(
            f"{path} line {line}: {quoted(text.strip())} is not a JSON object; {_EXPECTED}"
        )
    for key in _KEYS:
        if key not in fields:
            raise InvalidArgument(f"{path} line {line} has no {key}; {_EXPECTED}")
    return fields


def _tokens(path: Path, line: int, key: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= TOKENS_MAX:
        return value
    raise InvalidArgument(
        f"{path} line {line}: {key} is {quoted(json.dumps(value))}; "
        f"give a whole number of tokens from 1 to {TOKENS_MAX}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
