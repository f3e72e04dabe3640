"""Tensors a loader computes with: a change goes through the loader, and back to the last bit."""

import pytest
import torch
from torch import nn

from rose.engines.shards.computed import ComputedTensors
from rose.engines.shards.copy_before_write import CopyBeforeWrite
from rose.engines.shards.places import views_of
from rose.engines.shards.trace import trace_loader
from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack
from rose.transfer.plan import TensorSpec
from tests.engines.shards.poured import bytes_of, random_like

SPECS = [
    TensorSpec("A_log", (6,), "float32"),
    TensorSpec("scale", (), "float32"),
    TensorSpec("q", (4, 3), "float32"),
    TensorSpec("k", (2, 3), "float32"),
    TensorSpec("plain", (5, 2), "float32"),
]


class Mamba(nn.Module):
    """What its loader computes: A, a sum over two tensors, and a scale that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.full((6,), float("nan")))
        self.qk = nn.Parameter(torch.zeros(6, 3))
        self.plain = nn.Parameter(torch.zeros(5, 2))
        self.register_buffer("scale", torch.zeros(1))
        self.derived = torch.zeros(3)  # registered nowhere
        self.parts: dict[str, torch.Tensor] = {}
        self.seen: list[str] = []

    def load_weights(self, weights) -> None:
        for name, loaded in weights:
            self.seen.append(name)
            if name == "A_log":
                self.A.data.zero_()
                self.A.data.copy_(-torch.exp(loaded))
            elif name == "scale":
                self.scale.fill_(loaded.item())
            elif name == "plain":
                self.plain.data.copy_(loaded)
            else:
                self.parts[name] = loaded
                if self.parts.keys() == {"q", "k"}:
                    both = torch.cat([self.parts.pop("q"), self.parts.pop("k")])
                    self.qk.data.copy_(both)
                    self.derived.copy_(both.sum(0))


@pytest.fixture
def loaded():
    """Return a model, what it was loaded with, and its computed tensors."""
    torch.manual_seed(1)
    model = Mamba()
    trace = trace_loader(model, model.load_weights, SPECS)
    assert trace.shards.computed == {
        "A_log": "exp",
        "scale": "_local_scalar_dense",
        "q": "cat",
        "k": "cat",
    }
    tensors = random_like(SPECS, seed=3)
    with torch.no_grad():
        model.load_weights(tensors.items())
    model.seen.clear()
    named = {name: tensors[name] for name in trace.shards.computed}
    return model, named, ComputedTensors(model, model.load_weights, named, ends=trace.ends), trace


def state(model: Mamba) -> dict[str, torch.Tensor]:
    return bytes_of(model) | {"derived": model.derived.clone()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_change_of_the_copies_reaches_the_model_as_if_it_were_loaded_anew(loaded) -> None:
    model, named, computed, _ = loaded
    fresh = {name: one * 1.5 for name, one in named.items()}
    for name, one in fresh.items():
        computed.parameters[f"host:{name}"].copy_(one)
    computed.load()
    twin = Mamba()
    with torch.no_grad():
        twin.load_weights(fresh.items())
        twin.plain.copy_(model.plain)
    assert equal(state(model), state(twin))


def test_undo_puts_back_every_bit_of_what_was_written_and_of_nothing_else(loaded) -> None:
    model, named, computed, _ = loaded
    with torch.no_grad():
        model.A[0], model.A[1] = -0.0, float("nan")
    before = state(model)
    for one in computed.parameters.values():
        one.add_(1)
    computed.load()
    assert not equal(state(model), before)
    model.plain.data.fill_(7)
    before["plain"] = bytes_of(model)["plain"]
    computed.undo()
    assert equal(state(model), before)
    computed.undo()
    assert equal(state(model), before)
    assert (computed.parameters["host:scale"] == named["scale"] + 1).all()


def test_only_what_changed_is_loaded_with_what_ends_in_the_same_place(loaded) -> None:
    model, _, computed, _ = loaded
    computed.load(["q"])
    assert model.seen == ["scale", "q", "k"]  # nobody knows where the scale ends
    model.seen.clear()
    computed.load(["A_log"])
    assert model.seen == ["A_log", "scale"]
    with pytest.raises(InvalidArgument, match=r"changed must name tensors .*, got plain"):
        computed.load(["plain"])


def test_loader_that_fails_leaves_everything_as_it_was(loaded) -> None:
    model, _, computed, _ = loaded
    for one in computed.parameters.values():
        one.add_(1)
    before = state(model)
    stock = model.load_weights

    def fail(weights) -> None:
        stock(weights)
        raise KeyError("q")

    broken = ComputedTensors(model, fail, {"A_log": torch.zeros(6)})
    with pytest.raises(KeyError):
        broken.load()
    assert equal(state(model), before)


def test_loader_that_replaces_a_parameter_is_refused_and_undone(loaded) -> None:
    model, _, _, _ = loaded
    before, kept, place = state(model), model.A, model.plain.data_ptr()

    def replace(weights) -> None:
        for _, one in weights:
            model.qk.data.add_(1)
            model.plain.data = torch.zeros(5, 2)
            model.A = nn.Parameter(one)

    other = ComputedTensors(model, replace, {"A_log": torch.zeros(6)})
    with pytest.raises(InvalidArgument, match="must copy into A, but it replaced"):
        other.load()
    assert equal(state(model), before)
    assert model.A is kept
    assert model.plain.data_ptr() == place


def test_loader_may_keep_and_change_what_it_is_given(loaded) -> None:
    model, named, _, _ = loaded

    def greedy(weights) -> None:
        for _, one in weights:
            model.kept = one.mul_(2)

    computed = ComputedTensors(model, greedy, {"A_log": named["A_log"]})
    computed.load()
    assert torch.equal(computed.parameters["host:A_log"], named["A_log"])
    assert model.kept.data_ptr() != computed.parameters["host:A_log"].data_ptr()


def test_writes_that_overlap_are_undone_in_the_opposite_order() -> None:
    model = nn.Module()
    model.p = nn.Parameter(torch.arange(8.0))

    def load_weights(weights) -> None:
        for _, one in weights:
            model.p.data[2:6].copy_(one)
            model.p.data.mul_(3)
            model.p.data[3:5].add_(1)
            model.p.data.mul_(2)

    computed = ComputedTensors(model, load_weights, {"a": torch.zeros(4)})
    computed.load()
    computed.undo()
    assert model.p.tolist() == list(range(8))


def test_what_a_loader_makes_itself_is_not_kept() -> None:
    parameter = torch.arange(8.0)
    with CopyBeforeWrite() as saved:
        room = torch.zeros(1000)
        room.add_(1)
        parameter[:2].add_(room[:2])
        parameter[:2].mul_(3)
    assert saved.size_bytes == 2 * parameter.element_size()
    saved.restore()
    assert parameter.tolist() == list(range(8))
    assert saved.size_bytes == 0


def test_copies_are_tiles_that_a_delta_changes(loaded) -> None:
    model, named, computed, trace = loaded
    shards = computed.completed(trace.shards)
    assert not shards.computed
    assert {piece.tensor for piece in shards.pieces} == {spec.name for spec in SPECS}
    assert computed.storages(7)[7, "host:q"] == 12
    (piece,) = [one for one in shards.pieces if one.tensor == "A_log"]
    views = views_of(computed.parameters, {0: ((piece.view, piece.region.shape),)})
    fresh = named["A_log"] + 0.25
    delta_apply(views[0][0], delta_pack(fresh, named["A_log"].clone()))
    computed.load(["A_log"])
    assert torch.equal(model.A.data, -torch.exp(fresh))
    with pytest.raises(InvalidArgument, match="A_log is not computed"):
        computed.completed(shards)
