"""The table of commands that `rose` loads by the entry point `rose.commands`."""

from typing import Final

# Name: (location, help line), as in `rose.cli.main`.
COMMANDS: Final = {
    "compare": (
        "rose_lab.cli.compare:compare",
        "Compare rose with other ways to share a device, on one trace.",
    ),
    "delta": (
        "rose_lab.cli.delta:delta",
        "Inspect, make, apply or undo the difference between two checkpoints.",
    ),
    "demo": (
        "rose_lab.cli.demo:demo",
        "Run serving and rollouts on one device, and report their interference.",
    ),
    "plan": (
        "rose_lab.cli.plan:plan",
        "Compute how much of a device can be lent beside two models, and why.",
    ),
    "profile": (
        "rose_lab.cli.profile:profile",
        "Measure what serving leaves idle, and report how much could be lent at which SLO.",
    ),
    "sim": (
        "rose_lab.cli.sim:sim",
        "Simulate a cluster that borrows GPUs, and compare other ways to use them.",
    ),
    "transfer": (
        "rose_lab.cli.transfer:transfer",
        "Plan the traffic of weight updates, and merge the timelines of several programs.",
    ),
}
