"""Environments of trajectories: text in, text out, a reward for each step."""

from rose_lab.demo.environments.grid import GridWorld, Observed
from rose_lab.demo.environments.tasks import Task, task
from rose_lab.demo.environments.text import Tokenizer
from rose_lab.demo.environments.tool_waits import ToolWaits

__all__ = ["GridWorld", "Observed", "Task", "Tokenizer", "ToolWaits", "task"]
