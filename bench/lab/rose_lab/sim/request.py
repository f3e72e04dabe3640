"""A request of the simulated traffic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rose.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Request:
    """One request; its number is its index in order of arrival.

    Args:
        arrival_ms: time since the start of the trace, >= 0.
        prompt_tokens: prompt length, at least 1.
        output_tokens: output length, at least 1; the first token ends the prefill.
    """

    arrival_ms: float
    prompt_tokens: int
    output_tokens: int


def check_requests(requests: Sequence[Request]) -> None:
    """Check the order of arrivals and the lengths.

    Raises:
        InvalidArgument: an arrival is not finite or before the previous arrival, or a request has
            no tokens.
    """
    latest_ms = 0.0
    for number, request in enumerate(requests):
        if not (math.isfinite(request.arrival_ms) and request.arrival_ms >= latest_ms):
            raise InvalidArgument(
                f"request {number} arrives at {request.arrival_ms} ms: arrivals must ascend from 0"
            )
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise InvalidArgument(
                f"request {number} must have a prompt and an output of at least one token, got "
                f"{request.prompt_tokens} and {request.output_tokens}"
            )
        latest_ms = request.arrival_ms
