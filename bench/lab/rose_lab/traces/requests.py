"""Common part of all formats: requests collected line by line, in order."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rose.errors import InvalidArgument
from rose_lab.traces.text_file import quoted
from rose_lab.traces.trace import Trace


@dataclass(slots=True)
class Requests:
    """The requests of one file, in the order of its lines.

    Args:
        path: file name, for messages and the name of the trace.
        column: name of the file's time column, for messages.
    """

    path: Path
    column: str
    arrivals: list[float] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    skipped: int = 0

    def add(
        self, line: int, at: float, written: str, prompt_tokens: int, output_tokens: int
    ) -> None:
        """Append a request.

        Args:
            line: line number in the file.
            at: time in the unit of the file; whole nanoseconds stay exact as an int.
            written: text of `at` in the file.
            prompt_tokens: prompt length, >= 1.
            output_tokens: output length, >= 1.

        Raises:
            InvalidArgument: the previous request arrives later.
        """
        if self.arrivals and at < self.arrivals[-1]:
            raise InvalidArgument(
                f"{self.path} line {line}: {self.column} {quoted(written)} is earlier than that of "
                f"the previous request; sort the file by {self.column}"
            )
        self.arrivals.append(at)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)

    def since_first(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the (n,) float64 arrivals relative to the first, in the unit of the file.

        Subtraction precedes the conversion to float: a float of nanoseconds since 1970 would round
        to 256 ns.
        """
        first = self.arrivals[0] if self.arrivals else 0
        return np.array([at - first for at in self.arrivals], dtype=np.float64)

    def traced(
        self,
        arrival_s: np.ndarray[tuple[int], np.dtype[np.float64]],
        span_s: float | None = None,
    ) -> Trace:
        """Return the trace with arrivals at `arrival_s`.

        Raises:
            InvalidArgument: there are no requests.
        """
        if not self.arrivals:
            which = f", only {self.skipped} that failed" if self.skipped else ""
            raise InvalidArgument(f"{self.path} has no requests{which}; give a trace with requests")
        return Trace(
            arrival_s=arrival_s,
            prompt_tokens=np.array(self.prompt_tokens, dtype=np.int64),
            output_tokens=np.array(self.output_tokens, dtype=np.int64),
            name=self.path.name,
            span_s=span_s,
        )
