"""`Trace`: arrival times and lengths of requests. Every change makes a new trace."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument

TOKENS_MAX: Final = 1 << 24
"""Most tokens in a request; a larger number is damaged, since no model has such a context."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order of their arrival.

    The arrays are copied and made read-only, so traces can be shared between threads.

    Args:
        arrival_s: (n,) float64, seconds after the start of the trace, >= 0, ascending.
        prompt_tokens: (n,) int64, >= 1.
        output_tokens: (n,) int64, >= 1.
        name: name in reports.
        span_s: duration of the trace in seconds; by default up to the last arrival.

    Raises:
        InvalidArgument: lengths differ, arrivals descend, or a value is out of range.
    """

    arrival_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    name: str
    span_s: float | None = None

    def __post_init__(self) -> None:
        arrival_s = np.array(self.arrival_s, dtype=np.float64)
        prompt_tokens = np.array(self.prompt_tokens, dtype=np.int64)
        output_tokens = np.array(self.output_tokens, dtype=np.int64)
        _check_columns(self.name, arrival_s, prompt_tokens, output_tokens)
        last_s = float(arrival_s[-1]) if arrival_s.size else 0.0
        if self.span_s is not None and not last_s <= self.span_s < math.inf:
            raise InvalidArgument(
                f"trace {self.name}: span_s is {self.span_s}, but the last request arrives at "
                f"{last_s} s; give a finite span that holds it"
            )
        for column, values in (
            ("arrival_s", arrival_s),
            ("prompt_tokens", prompt_tokens),
            ("output_tokens", output_tokens),
        ):
            values.setflags(write=False)
            object.__setattr__(self, column, values)

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    @property
    def duration_s(self) -> float:
        """Duration of the trace in seconds."""
        if self.span_s is not None:
            return self.span_s
        return float(self.arrival_s[-1]) if len(self) else 0.0

    @property
    def mean_rate_rps(self) -> float:
        """Requests per second over `duration_s`; 0 if `duration_s` is 0."""
        return len(self) / self.duration_s if self.duration_s > 0 else 0.0

    def window(self, start_s: float, duration_s: float) -> "Trace":
        """Return the arrivals in [start_s, start_s + duration_s), counted from `start_s`."""
        if not (math.isfinite(start_s) and 0 < duration_s < math.inf):
            raise InvalidArgument(
                f"trace {self.name}: a window needs a finite start and a duration > 0, "
                f"not {start_s} and {duration_s} s"
            )
        first, end = np.searchsorted(self.arrival_s, [start_s, start_s + duration_s], side="left")
        return Trace(
            # Subtraction may round the last arrival up beyond the end of the window.
            arrival_s=np.clip(self.arrival_s[first:end] - start_s, 0.0, duration_s),
            prompt_tokens=self.prompt_tokens[first:end],
            output_tokens=self.output_tokens[first:end],
            name=self.name,
            span_s=duration_s,
        )

    def rescaled(self, *, rate_rps: float) -> "Trace":
        """Stretch or squeeze time to the mean rate `rate_rps`; bursts keep their shape.

        Raises:
            InvalidArgument: the rate is not a positive number, or the trace has no rate.
        """
        if not 0 < rate_rps < math.inf:
            raise InvalidArgument(
                f"trace {self.name}: rate_rps is {rate_rps}, give a number of requests/s above 0"
            )
        if self.mean_rate_rps == 0:
            raise InvalidArgument(
                f"trace {self.name} has {len(self)} requests in {self.duration_s} s, so it has no "
                f"rate to change; use a longer trace"
            )
        stretch = self.mean_rate_rps / rate_rps
        span_s = None if self.span_s is None else self.span_s * stretch
        arrival_s = self.arrival_s * stretch
        return replace(self, arrival_s=arrival_s, span_s=span_s)

    def with_lengths(
        self, *, scale: float = 1.0, prompt_max: int | None = None, output_max: int | None = None
    ) -> "Trace":
        """Multiply all lengths by `scale`, rounding up, then limit them to the maxima (tokens).

        Raises:
            InvalidArgument: the scale or a limit is not positive, or a length exceeds `TOKENS_MAX`.
        """
        if not 0 < scale < math.inf:
            raise InvalidArgument(f"length scale is {scale}, give a number above 0")
        return replace(
            self,
            prompt_tokens=_scaled_tokens(self.prompt_tokens, scale, prompt_max),
            output_tokens=_scaled_tokens(self.output_tokens, scale, output_max),
        )

    def head(self, n: int) -> "Trace":
        """Return the first `n` requests, or all if there are fewer."""
        if n < 0:
            raise InvalidArgument(f"trace {self.name}: n must be at least 0, got {n}")
        if n >= len(self):
            return self
        return Trace(
            arrival_s=self.arrival_s[:n],
            prompt_tokens=self.prompt_tokens[:n],
            output_tokens=self.output_tokens[:n],
            name=self.name,
        )


def _check_columns(
    name: str,
    arrival_s: npt.NDArray[np.float64],
    prompt_tokens: npt.NDArray[np.int64],
    output_tokens: npt.NDArray[np.int64],
) -> None:
    shapes = {arrival_s.shape, prompt_tokens.shape, output_tokens.shape}
    if len(shapes) != 1 or arrival_s.ndim != 1:
        raise InvalidArgument(
            f"trace {name}: the three columns must be one-dimensional and equally long, "
            f"not {arrival_s.shape}, {prompt_tokens.shape} and {output_tokens.shape}"
        )
    if not arrival_s.size:
        return
    if not np.isfinite(arrival_s).all() or arrival_s[0] < 0 or (np.diff(arrival_s) < 0).any():
        raise InvalidArgument(f"trace {name}: arrivals must be finite, >= 0 and ascending")
    for column, tokens in (("prompt", prompt_tokens), ("output", output_tokens)):
        if tokens.min() < 1 or tokens.max() > TOKENS_MAX:
            raise InvalidArgument(
                f"trace {name}: {column} lengths must be 1 to {TOKENS_MAX} tokens, "
                f"but range from {tokens.min()} to {tokens.max()}"
            )


def _scaled_tokens(
    tokens: npt.NDArray[np.int64], scale: float, limit: int | None
) -> npt.NDArray[np.int64]:
    if limit is not None and limit < 1:
        raise InvalidArgument(f"a limit of {limit} tokens leaves no request; give at least 1")
    longest = float(tokens.max(initial=1)) * scale
    if not longest <= TOKENS_MAX:
        raise InvalidArgument(
            f"a length scale of {scale:g} makes a request of {longest:g} tokens, but a request "
            f"must have at most {TOKENS_MAX}"
        )
    scaled: npt.NDArray[np.float64] = np.clip(np.ceil(tokens * scale), 1, limit)
    return scaled.astype(np.int64)
