"""Request traces: read from files, or generated with the statistics of a public one."""

from rose.traces.azure import read_trace
from rose.traces.generator import generate_chat
from rose.traces.trace import Trace

__all__ = ["Trace", "generate_chat", "read_trace"]
