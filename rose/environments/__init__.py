"""Worlds that trajectories act in: text in, text out, rewards that can be recomputed."""

from rose.environments.calculator import Calculator
from rose.environments.environment import Environment, Step, Transcript
from rose.environments.grid import GridWorld
from rose.environments.tasks import Task, task
from rose.environments.text import Tokenizer
from rose.environments.tool_waits import ToolWaits

__all__ = [
    "Calculator",
    "Environment",
    "GridWorld",
    "Step",
    "Task",
    "Tokenizer",
    "ToolWaits",
    "Transcript",
    "task",
]
