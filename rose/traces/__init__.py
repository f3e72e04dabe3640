"""Request traces: read from files, or generated with the statistics of a public trace."""

from rose.traces.agents import AgentTrace, read_agent_trace, tool_waits
from rose.traces.generator import generate
from rose.traces.profile import PROFILES
from rose.traces.reader import read_trace, read_trace_file
from rose.traces.requests import TraceFile
from rose.traces.rose_csv import write_trace
from rose.traces.statistics import TraceStatistics, describe
from rose.traces.trace import Trace

__all__ = [
    "PROFILES",
    "AgentTrace",
    "Trace",
    "TraceFile",
    "TraceStatistics",
    "describe",
    "generate",
    "read_agent_trace",
    "read_trace",
    "read_trace_file",
    "tool_waits",
    "write_trace",
]
