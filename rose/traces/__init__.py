"""Request traces: read from files, or generated with the statistics of a public trace."""

from rose.traces.agents import tool_waits
from rose.traces.generator import generate
from rose.traces.profile import PROFILES
from rose.traces.reader import read_trace
from rose.traces.rose_csv import write_trace
from rose.traces.trace import Trace

__all__ = [
    "PROFILES",
    "Trace",
    "generate",
    "read_trace",
    "tool_waits",
    "write_trace",
]
