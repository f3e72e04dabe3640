"""Scenarios: descriptions of simulations in files, and the worlds made from them.

Only `rose_lab.sim.scenario.yaml_file` reads files; it needs the extra `sim`.
"""

from rose_lab.sim.scenario.scenario import Algorithm, Job, Scenario, scenario_from

__all__ = ["Algorithm", "Job", "Scenario", "scenario_from"]
