"""Request traces: read from files, or generated with the statistics of a public trace."""

from rose_lab.traces.agents import tool_waits
from rose_lab.traces.generator import generate
from rose_lab.traces.profile import PROFILES
from rose_lab.traces.reader import read_trace
from rose_lab.traces.rose_csv import write_trace
from rose_lab.traces.trace import Trace

__all__ = [
    "PROFILES",
    "Trace",
    "generate",
    "read_trace",
    "tool_waits",
    "write_trace",
]
