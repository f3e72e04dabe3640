"""Worlds that trajectories act in: text in, text out, rewards for each step."""

from rose.demo.environments.calculator import Calculator
from rose.demo.environments.environment import Environment, Observed
from rose.demo.environments.grid import GridWorld
from rose.demo.environments.tasks import Task, task
from rose.demo.environments.text import Tokenizer
from rose.demo.environments.tool_waits import ToolWaits

__all__ = [
    "Calculator",
    "Environment",
    "GridWorld",
    "Observed",
    "Task",
    "Tokenizer",
    "ToolWaits",
    "task",
]
