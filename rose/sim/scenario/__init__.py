"""Scenarios: files of what is simulated, and the worlds that are made of them.

Files themselves are read by `rose.sim.scenario.yaml_file`, which needs the extra `sim`.
"""

from rose.sim.scenario.scenario import Algorithm, Job, Scenario, scenario_from

__all__ = ["Algorithm", "Job", "Scenario", "scenario_from"]
