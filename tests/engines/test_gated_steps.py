"""Gated steps compute what ungated ones do: eager, compiled, and in captured parts, with pauses."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from rose._core import CloseReason, HostGate, Verdict
from rose.engines.torch import gate_graphs, gate_layers
from rose.errors import StepAborted
from tests.engines.test_gate_layers import Lane, Model

LAYERS = 6
ROUNDS = 12
LONG_MS = 200_000.0  # bounds a hang, no more


class GatedLane:
    """A rollout lane's calls over a real gate."""

    def __init__(self) -> None:
        self.step_thread = 0
        self.host = HostGate()

    def gate(self) -> None:
        verdict = self.host.pass_(timeout_ms=LONG_MS)
        if verdict == Verdict.ABORTED:
            raise StepAborted("serving took back the slabs of this step")
        assert verdict == Verdict.PASSED

    @contextmanager
    def step(self) -> Iterator[None]:
        self.host.begin_step()
        self.gate()
        self.step_thread = threading.get_ident()
        try:
            yield
        finally:
            self.step_thread = 0
            self.host.leave()
            self.host.end_step()


@contextmanager
def pausing(host: HostGate, seed: int) -> Iterator[None]:
    """Serving that comes and goes: the gate closes and opens at random moments."""
    over = threading.Event()
    rng = random.Random(seed)

    def serve() -> None:
        while not over.is_set():
            host.close(CloseReason.ARRIVAL)
            over.wait(rng.uniform(0, 0.0005))
            host.grant(rng.randint(1, 3))
            host.open(host.close_epoch)
            over.wait(rng.uniform(0, 0.0005))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Deep(nn.Module):
    """Layers whose order and number show in the bits of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(LAYERS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + 0.5 * x
        return x


def deep(seed: int = 5) -> Deep:
    torch.manual_seed(seed)
    return Deep().eval()


def compiled(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


@pytest.mark.parametrize(("prepare", "every"), [(lambda model: model, 2), (compiled, 1)])
@torch.no_grad()
def test_pauses_change_no_bit_and_every_gate_fires(prepare, every: int) -> None:
    inputs = [torch.randn(3, 16) for _ in range(ROUNDS)]
    plain = deep()
    expected = [plain(one) for one in inputs]
    lane, model = GatedLane(), deep()
    gate_layers(lane, model, every=every)
    run = prepare(model)
    with pausing(lane.host, seed=every):
        for one, wanted in zip(inputs, expected, strict=True):
            before = lane.host.passed
            with lane.step():
                found = run(one)
            assert torch.equal(found, wanted)
            assert lane.host.passed - before == 1 + LAYERS // every
    assert lane.host.stats().pauses > 0


@torch.no_grad()
def test_steps_and_threads_compile_nothing_again() -> None:
    compiled_graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        compiled_graphs.append(graph)
        return graph

    lane, model = Lane(), Model(4)
    gate_layers(lane, model, every=1)
    torch._dynamo.reset()
    run, x = torch.compile(model, backend=backend), torch.randn(2, 4)
    run(x)
    first = len(compiled_graphs)
    assert first > 0
    for thread in (threading.get_ident(), 0, threading.get_ident(), 17, 0):
        lane.step_thread = thread
        run(x)
    assert len(compiled_graphs) == first
    assert lane.gates == 2 * 4


@torch.no_grad()
def test_abort_comes_out_of_a_compiled_model() -> None:
    lane, model = GatedLane(), deep()
    gate_layers(lane, model, every=1)
    run = compiled(model)
    x = torch.randn(2, 16)
    lane.host.grant(1 << 20)
    lane.host.open(lane.host.close_epoch)
    with lane.step():
        expected = run(x)
    with lane.step():
        lane.host.close(CloseReason.REVOCATION)
        assert lane.host.abort_step()
        with pytest.raises(StepAborted):
            run(x)
    lane.host.grant(1 << 20)
    lane.host.open(lane.host.close_epoch)
    with lane.step():
        assert torch.equal(run(x), expected)


class Part:
    """Stands for a captured graph: some layers, in place."""

    def __init__(self, layer: nn.Module, state: torch.Tensor, seen: list[int], number: int) -> None:
        self._layer, self._state, self._seen, self._number = layer, state, seen, number

    @torch.no_grad()
    def replay(self) -> None:
        self._seen.append(self._number)
        self._state.copy_(torch.tanh(self._layer(self._state)) + 0.5 * self._state)


def parts(state: torch.Tensor, seen: list[int]) -> list[Part]:
    return [Part(layer, state, seen, i) for i, layer in enumerate(deep().layers)]


@torch.no_grad()
def test_step_of_graphs_is_the_step_whatever_pauses_it() -> None:
    lane, state, seen = GatedLane(), torch.empty(3, 16), []
    run = gate_graphs(lane, parts(state, seen))
    with pausing(lane.host, seed=9):
        for _ in range(ROUNDS):
            x = torch.randn(3, 16)
            state.copy_(x)
            with lane.step():
                run()
            assert torch.equal(state, deep()(x))
    assert seen == list(range(LAYERS)) * ROUNDS
    assert lane.host.passed == ROUNDS * LAYERS


@pytest.mark.parametrize("done", [1, LAYERS - 1])
def test_abort_leaves_out_the_graphs_behind_its_gate(done: int) -> None:
    lane, state, seen = GatedLane(), torch.zeros(1, 16), []
    run = gate_graphs(lane, parts(state, seen))
    lane.host.grant(done)
    lane.host.open(lane.host.close_epoch)
    with lane.step():
        aborter = threading.Thread(target=lambda: abort_at(lane.host, done))
        aborter.start()
        with pytest.raises(StepAborted):
            run()
        aborter.join()
    assert seen == list(range(done))


def abort_at(host: HostGate, passed: int) -> None:
    over = threading.Event()
    while host.passed < passed:
        over.wait(0.0001)
    assert host.abort_step()
