"""Tracing a loader: every parameter, bit by bit, is what the map says; nothing else is claimed."""

import pytest
import torch
from torch import nn

from rose.engines.shards.look import BOXES_MAX
from rose.engines.shards.trace import joined_traces, trace_loader
from rose.errors import InvalidArgument
from rose.transfer.plan import TensorSpec
from tests.engines.shards.miniature import Miniature, Sizes
from tests.engines.shards.poured import bytes_of, pour, random_like

SIZES = Sizes()


class Loads(nn.Module):
    """A model of parameters p0, p1 and so on, with a loader of one function for each tensor."""

    def __init__(self, *shapes, dtype=torch.float32) -> None:
        super().__init__()
        for at, shape in enumerate(shapes):
            self.register_parameter(f"p{at}", nn.Parameter(torch.randn(shape).to(dtype)))

    def loader(self, **loads):
        def load_weights(weights) -> None:
            for name, loaded in weights:
                with torch.no_grad():
                    loads[name](loaded)

        return load_weights


def trace(model, shapes, dtype="float32", **loads):
    specs = [TensorSpec(name, shape, dtype) for name, shape in shapes.items()]
    return trace_loader(model, model.loader(**loads), specs)


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2), (0, 4), (1, 4), (2, 4), (3, 4)])
def test_map_puts_every_bit_where_the_loader_puts_it(rank, size) -> None:
    torch.manual_seed(rank)
    model = Miniature(rank, size)
    before = bytes_of(model)
    found = trace_loader(model, model.load_weights, SIZES.checkpoint(), rank=rank)
    assert not found.shards.computed
    # The last of four ranks has rows of the padding only.
    assert found.skipped == (("embed.weight",) if rank == 3 else ())
    after = bytes_of(model)
    assert all(torch.equal(one, after[name]) for name, one in before.items())
    tensors = random_like(SIZES.checkpoint(), seed=size)
    model.load_weights(tensors.items())
    loaded = bytes_of(model)
    torch.manual_seed(rank)
    twin = Miniature(rank, size)
    twin.embed.weight.data.zero_()  # the rows of no token
    pour(found.shards, tensors, twin, rank=rank)
    poured = bytes_of(twin)
    assert all(torch.equal(one, poured[name]) for name, one in loaded.items())


def test_model_without_memory_is_traced_like_one_with() -> None:
    with torch.device("meta"):
        bare = Miniature(1, 2)
    real = Miniature(1, 2)
    one = trace_loader(bare, bare.load_weights, SIZES.checkpoint())
    other = trace_loader(real, real.load_weights, SIZES.checkpoint())
    assert one == other


# ---- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (lambda p, w: p.copy_(-torch.exp(w)), "exp"),
        (lambda p, w: p.copy_(w + 1), "add"),
        (lambda p, w: p.copy_(w.to(torch.bfloat16)), "converted from float32 to bfloat16"),
        (lambda p, w: p.copy_(w.half()), "converted from float32 to float16"),
        (lambda p, w: p.copy_(w[:1].expand(4, 3)), "expand"),
        (lambda p, w: p.copy_(w[0]), "expand"),
        (lambda p, w: p.add_(w), "add_"),
        (lambda p, w: p.copy_(w.mul_(2)), "mul_"),
        (lambda p, w: torch.add(w, 1, out=p), "add"),
        (lambda p, w: p.copy_(w[torch.tensor([3, 1, 0, 2])]), "index"),
        (lambda p, w: p.copy_(torch.cat([w[2:], w[:2]])), "cat"),
        (lambda p, w: p.copy_(w.t().reshape(4, 3)), "reshape that is not a view"),
        (lambda p, w: p.copy_(w.t().contiguous().view(4, 3)), "reshape that is not a view"),
        (lambda p, w: p.copy_(w) if w.max().item() > 0 else None, "max"),
        (lambda p, w: p.copy_(w) if torch.equal(w, w) else None, "equal"),
        (lambda p, w: p.copy_(torch.from_numpy(w.numpy())), "TypeError: can't convert"),
        (lambda p, w: p.fill_(w.tolist()[0][0]), "RuntimeError: tolist()"),
        (lambda p, w: (p.copy_(w), p.mul_(2)), "mul_ changes p0 where the copy is"),
        (lambda p, w: (p.copy_(w), p.zero_()), "zero_ changes p0 where the copy is"),
        (lambda p, w: p.copy_(torch.zeros(4, 3).copy_(w)), "copied into a non-parameter"),
        (lambda p, w: p.copy_(torch.empty_like(w).copy_(w)), "copied into a non-parameter"),
        (lambda p, w: setattr(p, "data", torch.zeros(2).new_tensor(0) + w.sum()), "sum"),
    ],
)
def test_what_is_no_copy_of_elements_is_computed_and_says_why(load, why) -> None:
    model = Loads((4, 3), (5,))
    before = bytes_of(model)
    found = trace(
        model,
        {"a": (4, 3), "b": (5,)},
        a=lambda w: load(model.p0, w),
        b=model.p1.copy_,
    )
    assert why in found.shards.computed["a"]
    assert [piece.tensor for piece in found.shards.pieces] == ["b"]
    assert not found.skipped
    after = bytes_of(model)
    assert all(torch.equal(one, after[name]) for name, one in before.items())


def test_computed_tensor_says_where_it_ends() -> None:
    model = Loads((4,), (4,), (2,))
    found = trace(
        model,
        {"a": (4,), "b": (2,), "c": (2,)},
        a=lambda w: (model.p0.copy_(w.exp()), model.p1.copy_(w)),
        b=lambda w: model.p1[2:].copy_(w * 2),
        c=model.p2.copy_,
    )
    assert found.ends == {"a": ("p0", "p1"), "b": ("p1",)}
    assert found.excused == {"p0", "p1"}
    assert [piece.tensor for piece in found.shards.pieces] == ["c"]


def test_copy_that_a_computed_tensor_would_overwrite_is_computed_too() -> None:
    model = Loads((6, 2))
    found = trace(
        model,
        {"a": (6, 2), "b": (3, 2)},
        a=lambda w: model.p0.copy_(w.exp()),
        b=model.p0[3:].copy_,
    )
    assert found.shards.computed.keys() == {"a", "b"}
    assert not found.shards.pieces


def test_one_computed_tensor_may_spoil_a_copy_that_spoils_another() -> None:
    model = Loads((6,), (3,), (2,))
    found = trace(
        model,
        {"a": (6,), "b": (3,), "c": (2,), "d": (2,)},
        a=lambda w: model.p0.copy_(w.exp()),
        b=lambda w: (model.p0[3:].copy_(w), model.p1.copy_(w)),
        c=model.p1[1:].copy_,
        d=model.p2.copy_,
    )
    assert found.shards.computed.keys() == {"a", "b", "c"}
    assert [piece.tensor for piece in found.shards.pieces] == ["d"]


def test_state_derived_from_a_parameter_makes_its_tensors_computed() -> None:
    model = Loads((4, 3), (3, 4))
    found = trace(
        model,
        {"a": (4, 3)},
        a=lambda w: (model.p0.copy_(w), model.p1.copy_(model.p0.t())),
    )
    assert found.shards.computed == {"a": "copied out of a parameter"}
    assert found.ends == {"a": ("p0", "p1")}


def test_parameter_that_a_loader_replaces_is_put_back() -> None:
    model = Loads((4, 3), (4, 3))
    kept, place = model.p0, model.p1.data_ptr()

    def replace(w) -> None:
        model.p0 = nn.Parameter(w)
        model.p1.data = torch.zeros(7)
        model.p2 = nn.Parameter(torch.zeros(2))

    found = trace(model, {"a": (4, 3)}, a=replace)
    assert found.shards.computed == {"a": "it replaces a parameter"}
    assert model.p0 is kept
    assert model.p1.data_ptr() == place
    assert not hasattr(model, "p2")


def test_copies_into_a_parameter_that_is_replaced_afterwards_are_computed() -> None:
    model = Loads((4, 3))
    found = trace(
        model,
        {"a": (4, 3)},
        a=lambda w: (model.p0.copy_(w), setattr(model.p0, "data", model.p0.data.t().clone())),
    )
    assert found.shards.computed.keys() == {"a"}
    assert not found.shards.pieces


def test_loader_that_reads_ahead_is_followed_too() -> None:
    model = Loads((4,), (4,), (4,))

    def load_weights(weights) -> None:
        with torch.no_grad():
            for name, loaded in sorted(weights, reverse=True):
                if name == "b" and loaded[0] > 0:
                    continue
                getattr(model, f"p{'abc'.index(name)}").copy_(loaded)

    specs = [TensorSpec(name, (4,), "float32") for name in "abc"]
    found = trace_loader(model, load_weights, specs)
    assert [piece.tensor for piece in found.shards.pieces] == ["c", "a"]
    assert found.shards.computed == {"b": "gt"}


def test_loader_that_swallows_what_is_raised_swallows_no_reason() -> None:
    model = Loads((4,))

    def load(w) -> None:
        try:
            scale = w.max().item()
        except Exception:  # noqa: BLE001
            scale = 1.0
        model.p0.copy_(w)
        assert scale

    found = trace(model, {"a": (4,)}, a=load)
    assert found.shards.computed == {"a": "max"}
    assert not found.shards.pieces


def test_two_tensors_in_one_operation_are_both_computed() -> None:
    model = Loads((4,))
    kept = {}

    def load(name):
        def take(w) -> None:
            kept[name] = w
            if len(kept) == 2:
                model.p0.copy_(torch.cat([kept["a"], kept["b"]]))

        return take

    found = trace(model, {"a": (2,), "b": (2,)}, a=load("a"), b=load("b"))
    assert found.shards.computed == {"a": "cat", "b": "cat"}
    assert found.ends == {"a": ("p0",), "b": ("p0",)}


def test_tensor_that_is_put_nowhere_is_skipped_by_name() -> None:
    model = Loads((4,))
    found = trace(model, {"a": (4,), "b": (4,)}, a=model.p0.copy_, b=lambda w: None)
    assert found.skipped == ("b",)
    assert found.shards.tensors.keys() == {"a"}


def test_tensor_scattered_too_finely_is_computed() -> None:
    count = BOXES_MAX + 1
    model = Loads((count,))
    found = trace(model, {"a": (2 * count,)}, a=lambda w: model.p0.copy_(w[::2]))
    assert found.shards.computed == {"a": "scattered over too many boxes"}


def test_bits_looked_at_as_another_dtype_are_copied_and_of_another_width_computed() -> None:
    model = Loads((4,), dtype=torch.float16)
    found = trace(
        model, {"a": (4,)}, dtype="bfloat16", a=lambda w: model.p0.copy_(w.view(torch.float16))
    )
    assert not found.shards.computed
    found = trace(
        model, {"a": (2,)}, dtype="float32", a=lambda w: model.p0.copy_(w.view(torch.float16))
    )
    assert "view" in found.shards.computed["a"]


def test_names_of_one_storage_are_one_parameter() -> None:
    flat = torch.randn(10)
    model = Loads((1,))
    model.p0 = nn.Parameter(flat[:4])
    model.p1 = nn.Parameter(flat[4:].view(2, 3))
    found = trace(
        model,
        {"a": (4,), "b": (2, 3)},
        a=model.p0.copy_,
        b=model.p1.copy_,
    )
    views = [piece.view for piece in found.shards.pieces]
    assert [(one.parameter, one.offset, one.strides) for one in views] == [
        ("p0", 0, (1,)),
        ("p0", 4, (3, 1)),
    ]
    assert found.storages == {(0, "p0"): 10}


def test_wrong_checkpoint_is_refused() -> None:
    model = Loads((4, 3))
    with pytest.raises(InvalidArgument, match=r"but copied \(5, 3\) into \(4, 3\)"):
        trace(model, {"a": (5, 3)}, a=model.p0.copy_)
    with pytest.raises(InvalidArgument, match=r"a dtype of torch, .*, got 'float31'"):
        trace(model, {"a": (4, 3)}, dtype="float31", a=model.p0.copy_)
    with pytest.raises(KeyError):
        trace(model, {"a": (4, 3)})


def test_ranks_together_compute_what_one_computes_and_skip_what_all_skip() -> None:
    specs = [TensorSpec(name, (4,), "float32") for name in "abcd"]
    traces = []
    for rank in range(2):
        model = Loads((4,), (4,), (4,))
        model.register_buffer("table", torch.zeros(2))
        load = model.loader(
            a=lambda w, m=model, r=rank: m.p0.copy_(w.exp() if r else w),
            b=lambda w, m=model, r=rank: m.p1.copy_(w) if r else None,
            c=lambda w, m=model: m.p2.copy_(w),
            d=lambda w: None,
        )
        traces.append(trace_loader(model, load, specs, rank=rank))
    assert [piece.tensor for piece in traces[0].shards.pieces] == ["a", "c"]
    both = joined_traces(traces)
    assert [(piece.tensor, piece.rank) for piece in both.shards.pieces] == [
        ("c", 0),
        ("b", 1),
        ("c", 1),
    ]
    assert both.shards.computed == {"a": "exp"}
    assert both.ends == {"a": ("p0",)}
    assert both.skipped == ("d",)
    assert both.excused == {"p0", "table"}
    assert both.storages[1, "p2"] == 4
    assert len(both.storages) == 8


def test_address_that_is_used_again_is_no_tensor_of_before() -> None:
    model = Loads((4,), (4,))

    def load_weights(weights) -> None:
        for name, loaded in weights:
            if name == "last":
                with torch.no_grad():
                    model.p0.copy_(loaded.exp())
                    # Many, so that some lie where a tensor lay that is gone.
                    many = [torch.zeros(4) for _ in range(200)]
                    for one in many:
                        model.p1.copy_(one)
            elif name.startswith("made"):
                loaded.exp()

    names = [f"{kind}{at}" for kind in ("skipped", "made") for at in range(40)]
    found = trace_loader(
        model, load_weights, [TensorSpec(name, (4,), "float32") for name in [*names, "last"]]
    )
    assert not found.shards.pieces
    assert found.skipped == tuple(names[:40])
    assert {name for name, ends in found.ends.items() if ends} == {"last"}
