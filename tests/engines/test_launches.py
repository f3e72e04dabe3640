"""How a borrower's launches are counted, and when its host may run ahead of its stream."""

import threading

import pytest
import torch

from rose.engines.launches import LaunchMeasurement
from rose.engines.torch import gate_layers
from rose.errors import InvalidArgument
from tests.engines.test_gate_layers import Lane, Model

LONGEST = 8


class StreamLane(Lane):
    """Stands for a lane whose gates are in a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.step_thread = threading.get_ident()
        self.runs_ahead = False
        self.set: list[int] = []

    @property
    def passes(self) -> int:
        return self.gates

    def set_launches(self, per_segment: int) -> None:
        self.set.append(per_segment)
        if per_segment > LONGEST:
            raise InvalidArgument(f"the longest segment that fits has {LONGEST} launches")
        self.runs_ahead = True


def measured(layers: int, *, every: int) -> StreamLane:
    lane, model = StreamLane(), Model(layers)
    gate_layers(lane, model, every=every)
    measurement, row = LaunchMeasurement(lane), torch.zeros(1, 4)
    for _ in range(6):
        lane.gate()  # that of the quantum
        with torch.no_grad(), measurement.of_step():
            model(row)
    return lane


def test_longest_segment_counts_two_launches_for_each_operator_that_is_no_view() -> None:
    # A linear layer is a transposition, which is a view, and an addmm.
    assert measured(4, every=1).set == [2]
    assert measured(7, every=3).set == [6]


def test_host_runs_ahead_after_the_measurement() -> None:
    lane = measured(4, every=4)
    assert lane.runs_ahead
    assert lane.set == [8]  # once: later steps are not counted


def test_segment_beyond_the_queue_ends_the_step_with_the_one_that_fits() -> None:
    with pytest.raises(InvalidArgument, match="the longest segment that fits has 8 launches"):
        measured(5, every=5)
