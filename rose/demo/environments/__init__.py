"""Environments of trajectories: text in, text out, a reward for each step."""

from rose.demo.environments.grid import GridWorld, Observed
from rose.demo.environments.tasks import Task, task
from rose.demo.environments.text import Tokenizer
from rose.demo.environments.tool_waits import ToolWaits

__all__ = ["GridWorld", "Observed", "Task", "Tokenizer", "ToolWaits", "task"]
