"""Maps of tensors that are there, maps of several ranks, and parameters as tiles."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.engines.shards.places import views_of
from rose.engines.shards.plain import shard_map_of
from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack
from rose.transfer.plan import LocalView, Region, ShardMap, TensorSpec, joined


def places_of(shards: ShardMap) -> dict[int, tuple[tuple[LocalView, tuple[int, ...]], ...]]:
    return {at: ((one.view, one.region.shape),) for at, one in enumerate(shards.pieces)}


def test_views_keep_their_strides_and_look_at_the_same_memory() -> None:
    flat = torch.arange(60.0)
    named = {
        "a": flat[4:16].view(3, 4),
        "b": flat[16:40].view(4, 6).t(),
        "c": torch.arange(6.0).view(2, 3)[:, 1],
        "d": flat[50],
    }
    shards = shard_map_of(named, rank=3)
    assert [one.view for one in shards.pieces] == [
        LocalView("a", 4, (4, 1)),
        LocalView("a", 16, (1, 6)),
        LocalView("c", 1, (3,)),
        LocalView("a", 50, ()),
    ]
    assert shards.tensors["b"] == TensorSpec("b", (6, 4), "float32")
    assert shards.ranks == (3,)
    for at, (view,) in views_of(named, places_of(shards)).items():
        name = shards.pieces[at].tensor
        assert torch.equal(view, named[name])
        assert view.data_ptr() == named[name].data_ptr()


def test_tied_names_look_into_the_first() -> None:
    one = torch.randn(4, 3, requires_grad=True)
    shards = shard_map_of({"embed": one, "head": one.detach(), "other": torch.randn(2)})
    assert [piece.view.parameter for piece in shards.pieces] == ["embed", "embed", "other"]
    assert shards.pieces[0].view == shards.pieces[1].view


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (lambda t: {"a": t, "b": t.t()}, "share elements of a"),
        (lambda t: {"a": t[:2], "b": t[1:]}, "share elements of a"),
        (lambda t: {"a": t[0].expand(2, 4)}, "elements that may share memory"),
        (lambda t: {"a": t.view(-1).unfold(0, 3, 1)}, "elements that may share memory"),
        (lambda t: {"a": t.to("meta")}, "a is on the device meta"),
        (lambda t: {"a": t.to(torch.complex32)}, "a has the dtype complex32"),
        (lambda t: {"a": t.to_sparse()}, "dense copy"),
    ],
)
def test_what_a_delta_could_not_change_is_refused(named, words) -> None:
    with pytest.raises(InvalidArgument, match=words):
        shard_map_of(named(torch.randn(4, 4)))


def test_joined_maps_have_every_piece_once_and_compute_on_all_ranks_what_one_computes() -> None:
    one = shard_map_of({"a": torch.randn(2), "b": torch.randn(3)}, rank=0)
    two = shard_map_of({"b": torch.randn(3), "c": torch.randn(4)}, rank=1)
    spec = TensorSpec("a", (2,), "float32")
    three = ShardMap({"a": spec}, (), {"a": "exp"})
    both = joined([one, two, one])
    assert [(one.tensor, one.rank) for one in both.pieces] == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("c", 1),
    ]
    all_three = joined([one, two, three])
    assert [one.tensor for one in all_three.pieces] == ["b", "b", "c"]
    assert all_three.computed == {"a": "exp"}
    assert all_three.tensors.keys() == {"a", "b", "c"}
    with pytest.raises(InvalidArgument, match="same on all ranks, got float32 of shape"):
        joined([one, shard_map_of({"b": torch.randn(4)}, rank=1)])


# ---- places -------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 4), st.integers(0, 30))
def test_view_is_refused_exactly_when_it_leaves_the_storage(rows, columns, gap, offset) -> None:
    parameter = torch.arange(24.0)
    view = LocalView("p", offset, (columns + gap, 1))
    last = offset + (rows - 1) * (columns + gap) + columns - 1
    if last < 24:
        ((tile,),) = views_of({"p": parameter}, {0: ((view, (rows, columns)),)}).values()
        assert tile[-1, -1] == last
    else:
        with pytest.raises(InvalidArgument, match="its storage of 24"):
            views_of({"p": parameter}, {0: ((view, (rows, columns)),)})


@pytest.mark.parametrize(
    ("view", "shape", "words"),
    [
        (LocalView("q", 0, (1,)), (2,), "must contain q"),
        (LocalView("p", 0, (1,)), (2, 2), "a stride per dimension"),
        (LocalView("p", -1, (1,)), (2,), "got offset -1"),
        (LocalView("p", 3, (-1,)), (2,), "its storage of 4"),
    ],
)
def test_view_that_makes_no_sense_is_refused(view, shape, words) -> None:
    with pytest.raises(InvalidArgument, match=words):
        views_of({"p": torch.zeros(4)}, {0: ((view, shape),)})


def test_codec_changes_a_parameter_through_its_views_and_nothing_beside_it() -> None:
    parameter = torch.randn(4, 6, requires_grad=True)
    region = Region((0, 0), (4, 2))
    ((tile,),) = views_of(
        {"p": parameter}, {0: ((LocalView("p", 3, (6, 1)), region.shape),)}
    ).values()
    old, new = tile.contiguous(), torch.randn(4, 2)
    rest = parameter.detach().clone()
    rest[:, 3:5] = new
    delta_apply(tile, delta_pack(new, old.clone()))
    assert torch.equal(parameter.detach(), rest)
