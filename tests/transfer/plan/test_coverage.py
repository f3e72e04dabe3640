"""A shard map covers every element once, or is refused in one sentence."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.transfer.codec.box import Box
from rose.transfer.plan import LocalView, Piece, Region, ShardMap, TensorSpec, check_coverage
from tests.reference.plan import addresses, elements_of, storage_holders
from tests.transfer.plan.models import Model, flattened, sharded
from tests.transfer.plan.random_maps import shard_maps, specs

MOE = Model(experts=4)
LAYOUTS = [
    sharded(Model(), tp=2),
    sharded(Model(), tp=4, pp=2),
    sharded(MOE, tp=4, ep=4),
    sharded(MOE, tp=4, ep=2),
    sharded(Model(is_tied=True), tp=2),
    flattened(Model(), world=5),
]


def map_of(*pieces, computed=None, dtype="bfloat16", **shapes):
    tensors = {name: TensorSpec(name, shape, dtype) for name, shape in shapes.items()}
    return ShardMap(tensors, pieces, computed or {})


def piece(tensor, offset, shape, first=0, strides=None, *, rank=0, parameter="p"):
    if strides is None:
        strides = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return Piece(tensor, Region(offset, shape), rank, LocalView(parameter, first, strides))


@pytest.mark.parametrize("made", LAYOUTS)
def test_layouts_of_real_engines_cover_checkpoint_and_memory(made):
    coverage = check_coverage(made.shards, is_source=True, storages=made.storages)
    assert coverage.held == coverage.elements == made.model.elements
    assert not coverage.uncovered
    assert coverage.storage == sum(made.storages.values())


@given(specs().flatmap(lambda tensors: shard_maps(tensors, is_source=False)), st.data())
def test_held_and_missing_elements_are_counted_like_sets(shards, data):
    held = {name: set() for name in shards.tensors}
    for one in shards.pieces:
        held[one.tensor].update(elements_of(one.region))
    counts = {name: prod(spec.shape) - len(held[name]) for name, spec in shards.tensors.items()}
    storages = {}
    for storage, elements in storage_holders(shards).items():
        storages[storage] = max(elements) + 1 + data.draw(st.integers(0, 2))
    described = storage_holders(shards)
    free = {where: size - len(described[where]) for where, size in storages.items()}
    coverage = check_coverage(shards, storages=storages, buffers=["a", "b"])
    assert coverage.held == coverage.elements - sum(counts.values())
    assert coverage.uncovered == {where: count for where, count in free.items() if count}
    if sum(counts.values()):
        with pytest.raises(InvalidArgument, match="no rank of the source holds w"):
            check_coverage(shards, is_source=True)


@st.composite
def close_views(draw):
    """Put two boxes somewhere into 24 elements, with strides that may interleave."""
    made = []
    for name in "vw":
        shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
        strides = tuple(draw(st.integers(1, 6)) for _ in shape)
        made.append(piece(name, (0,) * len(shape), shape, draw(st.integers(0, 12)), strides))
    return map_of(*made, v=made[0].region.shape, w=made[1].region.shape)


@given(close_views())
def test_two_elements_in_one_place_are_refused_and_others_are_not(shards):
    holders = storage_holders(shards)[0, "p"].values()
    one, other = shards.pieces
    order = [addresses(piece.view, piece.region.shape) for piece in shards.pieces]
    is_tied = one.region == other.region and order[0] == order[1]
    is_shared = any(len({name for name, _ in elements}) > 1 for elements in holders)
    is_folded = any(len(set(places)) < len(places) for places in order)
    may_fold = any(may_repeat(piece) for piece in shards.pieces)
    assert may_fold or not is_folded
    if may_fold or (is_shared and not is_tied):
        with pytest.raises(InvalidArgument, match=r"two elements at one|share elements of p"):
            check_coverage(shards)
    else:
        assert check_coverage(shards).ties == ({"w": "v"} if is_tied else {})


def may_repeat(piece):
    steps = [
        pair for pair in zip(piece.region.shape, piece.view.strides, strict=True) if pair[0] > 1
    ]
    return Box(0, tuple(size for size, _ in steps), tuple(one for _, one in steps), 1).may_repeat


def test_an_overlap_names_both_tensors_and_where():
    shards = map_of(piece("v", (0, 0), (2, 4)), piece("w", (0,), (4,), 6), v=(2, 4), w=(4,))
    with pytest.raises(InvalidArgument) as raised:
        check_coverage(shards)
    assert str(raised.value) == (
        "v[0:2, 0:4] on rank 0 and w[0:4] on rank 0 share elements of p, and are not the same "
        "tensor"
    )


def test_parts_of_one_tensor_that_meet_in_memory_are_an_overlap():
    shards = map_of(piece("v", (0,), (4,)), piece("v", (2,), (2,), 2), v=(4,))
    with pytest.raises(InvalidArgument, match="share elements of p"):
        check_coverage(shards)


def test_interleaved_columns_do_not_overlap():
    halves = [piece(name, (0, 0), (4, 2), 2 * at, (4, 1)) for at, name in enumerate("vw")]
    coverage = check_coverage(map_of(*halves, v=(4, 2), w=(4, 2)), storages={(0, "p"): 16})
    assert not coverage.uncovered
    assert not coverage.ties


def test_piece_listed_twice_counts_once():
    one = piece("v", (0,), (4,))
    coverage = check_coverage(map_of(one, one, v=(4,)), is_source=True, storages={(0, "p"): 4})
    assert coverage.shards.pieces == (one,)


def test_tied_names_collapse_to_the_first():
    coverage = check_coverage(LAYOUTS[4].shards, is_source=True)
    assert coverage.ties == {"lm_head.weight": "model.embed_tokens.weight"}
    assert "lm_head.weight" not in coverage.shards.tensors
    assert all(one.tensor != "lm_head.weight" for one in coverage.shards.pieces)


def test_tied_names_collapse_to_one_that_is_known():
    shards = LAYOUTS[4].shards
    assert check_coverage(shards, known={"lm_head.weight"}).ties == {
        "model.embed_tokens.weight": "lm_head.weight"
    }


@pytest.mark.parametrize(
    "other",
    [
        map_of(piece("v", (0,), (4,)), piece("w", (0, 0), (2, 2)), v=(4,), w=(2, 2)),
        map_of(piece("v", (0,), (4,)), piece("w", (0,), (4,)), v=(4,), w=(5,)),
        map_of(
            piece("v", (0,), (4,)),
            piece("w", (0,), (4,)),
            piece("w", (0,), (4,), rank=1),
            v=(4,),
            w=(4,),
        ),
    ],
    ids=["shape", "part", "elsewhere"],
)
def test_partly_tied_tensors_overlap(other):
    with pytest.raises(InvalidArgument, match="share elements of p"):
        check_coverage(other)


def test_tensors_of_two_dtypes_in_one_place_are_an_overlap():
    shards = map_of(piece("v", (0,), (4,)), piece("w", (0,), (4,)), v=(4,), w=(4,))
    other = {**shards.tensors, "w": TensorSpec("w", (4,), "float16")}
    with pytest.raises(InvalidArgument, match="share elements of p"):
        check_coverage(replace(shards, tensors=other))


def test_silently_uncovered_memory_is_refused_unless_it_is_excused():
    shards, storages = map_of(piece("v", (0,), (4,)), v=(4,)), {(0, "p"): 6, (0, "cache"): 8}
    with pytest.raises(InvalidArgument) as raised:
        check_coverage(shards, storages=storages)
    assert str(raised.value) == (
        "no piece describes 2 elements of p on rank 0, and there is 1 more like it; add "
        "pieces, or list the parameter as computed or as a buffer"
    )
    computed = replace(shards, computed={"p": "padded"})
    with pytest.raises(InvalidArgument, match="8 elements of cache on rank 0"):
        check_coverage(computed, storages=storages)
    coverage = check_coverage(computed, storages=storages, buffers=["cache"])
    assert coverage.uncovered == {(0, "p"): 2, (0, "cache"): 8}


def test_source_must_hold_all_tensors_that_it_does_not_compute():
    shards = map_of(piece("v", (0,), (3,)), v=(4,), w=(2,))
    with pytest.raises(InvalidArgument, match=r"holds v\[3:4\], and there is 1 more like it; add"):
        check_coverage(shards, is_source=True)
    computed = replace(shards, computed={"v": "padded", "w": "-exp(w)"})
    assert check_coverage(computed, is_source=True).held == 3


def test_piece_beyond_its_storage_is_refused():
    shards = map_of(piece("v", (0, 0), (2, 2), 3, (4, 1)), v=(2, 2))
    assert check_coverage(shards, storages={(0, "p"): 9}, buffers=["p"]).uncovered == {(0, "p"): 5}
    with pytest.raises(InvalidArgument, match="reaches to element 9 of p, which has 8"):
        check_coverage(shards, storages={(0, "p"): 8}, buffers=["p"])
    with pytest.raises(InvalidArgument, match="reaches to element 9 of p, which has 0"):
        check_coverage(shards, storages={(1, "p"): 9}, buffers=["p"])


HUGE = 1 << 50


@pytest.mark.parametrize(
    ("shards", "says"),
    [
        (map_of(piece("x", (0,), (4,)), v=(4,)), "a piece of x, which the map does not list"),
        (
            map_of(piece("v", (1,), (4,)), v=(4,)),
            r"\[1:5\] of v .* exceeds the tensor's shape \(4,\)",
        ),
        (map_of(piece("v", (0,), (4,)), v=(0,)), "exceeds the tensor's shape"),
        (map_of(piece("v", (0,), (4,)), v=(4, 1)), "must have as many dimensions as"),
        (map_of(piece("v", (0,), (4,), 0, (1, 1)), v=(4,)), "needs 1 strides, got 2"),
        (map_of(piece("v", (0,), (4,), -1), v=(4,)), "negative offset or stride"),
        (map_of(piece("v", (0,), (4,), 0, (-1,)), v=(4,)), "negative offset or stride"),
        (
            map_of(piece("v", (0,), (4,), 0, (0,)), v=(4,)),
            "must not have two elements at one address",
        ),
        (map_of(piece("v", (0,), (4,), rank=-1), v=(4,)), "must have a rank from 0"),
        (map_of(piece("v", (0,), (1,), 0, (HUGE,)), v=(1,)), "reaches beyond element 2.48 of p"),
        (map_of(v=(HUGE,)), "more than 2.48 elements"),
        (map_of(v=(HUGE, 0)), "more than 2.48 elements"),
        (map_of(v=(1,) * 17), "must have at most 16 dimensions, none negative"),
        (map_of(v=(-1,)), "must have at most 16 dimensions, none negative"),
        (ShardMap({"v": TensorSpec("w", (1,), "int8")}, (), {}), "w is listed under the name v"),
    ],
)
def test_invalid_map_is_refused(shards, says):
    with pytest.raises(InvalidArgument, match=says):
        check_coverage(shards)
