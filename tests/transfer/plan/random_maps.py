"""Shard maps that no framework makes: any boxes, any ranks, any strides."""

from hypothesis import strategies as st

from rose.transfer.plan import LocalView, Piece, Region, ShardMap, TensorSpec

SHAPES = st.lists(st.integers(1, 6), min_size=0, max_size=3).map(tuple)


@st.composite
def partitions(draw, shape, cuts_max=4):
    """Divide a tensor into boxes by planes through one box at a time."""
    boxes = [Region((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, cuts_max))):
        place = draw(st.integers(0, len(boxes) - 1))
        box = boxes[place]
        wide = [dimension for dimension, size in enumerate(box.shape) if size > 1]
        if not wide:
            continue
        dimension = draw(st.sampled_from(wide))
        at = draw(st.integers(1, box.shape[dimension] - 1))
        boxes[place : place + 1] = halves(box, dimension, at)
    return boxes


def halves(box, dimension, at):
    def put(values, value):
        return (*values[:dimension], value, *values[dimension + 1 :])

    size = box.shape[dimension]
    return [
        Region(box.offset, put(box.shape, at)),
        Region(put(box.offset, box.offset[dimension] + at), put(box.shape, size - at)),
    ]


@st.composite
def boxes(draw, shape):
    """Take any boxes of a tensor; they may meet."""

    def box():
        low = tuple(draw(st.integers(0, size - 1)) for size in shape)
        sizes = zip(low, shape, strict=True)
        return Region(low, tuple(draw(st.integers(1, size - at)) for at, size in sizes))

    return [box() for _ in range(draw(st.integers(0, 5)))]


@st.composite
def shard_maps(draw, tensors, *, ranks=3, is_source=True):
    """Divide tensors among ranks; each box lies in a parameter in some order of its dimensions."""
    pieces, ends = [], {}
    for name, spec in tensors.items():
        for box in draw(partitions(spec.shape)):
            least = 1 if is_source else 0
            who = st.sets(st.integers(0, ranks - 1), min_size=least, max_size=ranks)
            for rank in sorted(draw(who)):
                parameter = draw(st.sampled_from(["a", "b"]))
                order = draw(st.permutations(range(len(box.shape))))
                gap, step = draw(st.integers(0, 2)), draw(st.integers(1, 2))
                first = ends.get((rank, parameter), 0) + gap
                strides = [0] * len(box.shape)
                for dimension in order:
                    strides[dimension] = step
                    step *= box.shape[dimension]
                ends[rank, parameter] = first + step
                view = LocalView(parameter, first, tuple(strides))
                pieces.append(Piece(name, box, rank, view))
    return ShardMap(tensors, tuple(pieces), {})


@st.composite
def specs(draw):
    """Name one to three tensors."""
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=3))
    return {
        f"w{place}": TensorSpec(f"w{place}", shape, "bfloat16")
        for place, shape in enumerate(shapes)
    }
