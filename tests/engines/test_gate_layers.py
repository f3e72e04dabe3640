"""Gates inside a torch module: where they are, and whom they stop."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rose.engines.torch import (
    captured_gates,
    check_device,
    decoder_layers,
    gate_layers,
    gated_graph,
)
from rose.errors import InvalidArgument


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x)


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(4, 4)])
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Lane:
    """Stands for a rollout lane: counts its gates."""

    def __init__(self) -> None:
        self.step_thread = 0
        self.gates = 0
        self.captured: list[int | None] = []

    def gate(self) -> None:
        self.gates += 1

    def capture_gate(self, stream: int | None) -> None:
        self.captured.append(stream)


def gates_of(lane: Lane, model: Model) -> int:
    lane.gates = 0
    lane.step_thread = threading.get_ident()
    model(torch.zeros(1, 4))
    lane.step_thread = 0
    return lane.gates


def test_the_longest_list_holds_the_layers() -> None:
    model = Model(7)
    assert decoder_layers(model) is model.layers


@pytest.mark.parametrize(("every", "gates"), [(0.5, 14), (1, 7), (2, 4), (3, 3), (7, 1), (100, 1)])
def test_a_gate_stands_before_every_nth_layer(every: float, gates: int) -> None:
    lane, model = Lane(), Model(7)
    gate_layers(lane, model, every=every)
    assert gates_of(lane, model) == gates


def test_gates_stop_the_thread_of_the_step_only() -> None:
    lane, model = Lane(), Model(3)
    gate_layers(lane, model, every=1)
    model(torch.zeros(1, 4))  # no step at all
    lane.step_thread = threading.get_ident()
    other = threading.Thread(target=lambda: model(torch.zeros(1, 4)))
    other.start()
    other.join()
    assert lane.gates == 0


@pytest.mark.parametrize(("every", "gates"), [(0.5, 14), (1, 7), (3, 3)])
def test_capture_gets_the_gates_of_a_step_and_leaves_none_in_the_module(
    every: float, gates: int
) -> None:
    lane, model = Lane(), Model(7)
    with captured_gates(lane, model, every=every, stream=77):
        model(torch.zeros(1, 4))
    assert lane.captured == [77] * gates
    model(torch.zeros(1, 4))
    with pytest.raises(RuntimeError), captured_gates(lane, model, every=every):
        raise RuntimeError
    model(torch.zeros(1, 4))
    assert (len(lane.captured), lane.gates) == (gates, 0)


def test_capture_refuses_random_numbers() -> None:
    def attend(dropout_p: float) -> None:
        one = torch.zeros(1, 2, 4, 8)
        nn.functional.scaled_dot_product_attention(one, one, one, dropout_p=dropout_p)

    draws = [
        lambda: torch.rand(3),
        lambda: torch.ones(3).multinomial(1),
        lambda: torch.ones(3).exponential_(),
        lambda: nn.Dropout(0.5)(torch.ones(3)),
        lambda: attend(0.5),
    ]
    for draw in draws:
        with (
            captured_gates(Lane(), Model(2), every=1),
            pytest.raises(InvalidArgument, match="draws random numbers"),
        ):
            draw()
    with captured_gates(Lane(), Model(2), every=1):
        attend(0.0)
        nn.Dropout(0.5).eval()(torch.ones(3))
    torch.rand(3)


def test_model_must_be_on_the_gpu_of_its_lane() -> None:
    facts = SimpleNamespace(uuid="of the other")
    lane = SimpleNamespace(
        ordinal=1,
        facts=SimpleNamespace(uuid="of the lane"),
        driver=SimpleNamespace(facts=lambda _: facts),
    )
    for one in ("cuda", "cuda:1"):
        check_device(lane, torch.device(one))
    check_device(None, torch.device("cpu"))
    with pytest.raises(InvalidArgument, match=r"UUID of the lane.*UUID of the other"):
        check_device(lane, torch.device("cuda:0"))
    with pytest.raises(InvalidArgument, match="the model is on cpu"):
        check_device(lane, torch.device("cpu"))


def test_lane_on_a_cpu_launches_no_graph() -> None:
    lane = Lane()
    lane.device = None
    with pytest.raises(InvalidArgument, match="a lane on a CPU launches no CUDA graphs"):
        gated_graph(lane, None)


def test_gates_can_be_taken_out() -> None:
    lane, model = Lane(), Model(3)
    take_out = gate_layers(lane, model, every=1)
    assert gates_of(lane, model) == 3
    take_out()
    take_out()
    assert gates_of(lane, model) == 0


@pytest.mark.parametrize("every", [0, -1, 0.25, 1.5])
def test_impossible_segment_is_refused(every: float) -> None:
    with pytest.raises(InvalidArgument, match=f"got {every:g}"):
        gate_layers(Lane(), Model(3), every=every)


def test_model_without_layers_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"call rollout\.gate\(\) yourself"):
        gate_layers(Lane(), nn.Linear(4, 4), every=1)
