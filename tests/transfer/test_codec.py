"""The codec of the core: the laws of every twin, and what only the core does."""

import ctypes
import mmap
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest

from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack
from rose.transfer.codec.backend import HostCodec
from rose.transfer.codec.operations import delta_merge, digest, topk_pack, topk_unpack
from tests.codec_laws import CodecLaws, DigestLaws
from tests.codec_twins import HostTwin
from tests.reference import delta as reference
from tests.transfer.twins import DENSE, ISAS, LAYOUTS, WIDE, WIDTHS, Bits, LaidOut, same
from tests.vectors.delta_v2 import changed, weights

M_PERTURB: Final = -6


@pytest.fixture(autouse=True, scope="module")
def _fresh_memory_is_not_zero() -> Iterator[None]:
    """Have glibc fill new memory, so that a word that is never written is noticed."""
    mallopt = ctypes.CDLL(None).mallopt
    assert mallopt(M_PERTURB, 0xA5)
    yield
    mallopt(M_PERTURB, 0)


@pytest.fixture(
    scope="module",
    # Boxes are tested with every instruction set.
    params=[(isa, "unaligned") for isa in ISAS]
    + [(ISAS[-1], layout) for layout in LAYOUTS if layout != "unaligned"],
    ids="-".join,
)
def twin(request: pytest.FixtureRequest) -> HostTwin:
    isa, layout = request.param
    return HostTwin(isa, lambda bits: LaidOut(bits, layout))


class TestHost(CodecLaws):
    """The core, with every instruction set of this machine and every layout of an array."""


class TestHostDigest(DigestLaws):
    """Digests of parts, by the same twins."""


# ---- what only the core does


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("steps", [1.0, 0.0])
def test_block_has_the_kind_with_the_fewest_words(steps: float, width: int) -> None:
    rng = np.random.default_rng(3)
    kinds = []
    raw = 1021 * width // 32 + 1
    for density in np.linspace(0, 1, 21)[1:]:
        new, old = changed(rng, 1021, density=float(density), steps=steps, width=width)
        delta = delta_pack(new, old.copy())
        kinds.append(int(delta.entries[0]) & 15)
        assert len(delta.payload) <= raw
    # From few to many changes; at the very end GAP has two words for each 32 positions as well.
    order = {reference.GAP: 0, reference.BITMAP: 1, reference.RAW: 2}
    assert kinds[0] == reference.GAP
    ranks = [order[kind] for kind in kinds]
    assert ranks[:-1] == sorted(ranks[:-1])
    assert reference.BITMAP in kinds


@pytest.mark.parametrize("threads", [2, 3, 64])
@pytest.mark.parametrize("count", [0, 5, DENSE, 7 * DENSE + 3])
def test_delta_does_not_depend_on_the_number_of_threads(count: int, threads: int) -> None:
    new, old = changed(np.random.default_rng(count), count, density=0.05, steps=0.8)
    shadow, other = old.copy(), old.copy()
    one = delta_pack(new, shadow, block_elements=DENSE)
    many = delta_pack(new, other, block_elements=DENSE, threads=threads)
    assert same(one, many)
    assert np.array_equal(other, new)
    big = np.tile(new, 40)  # worth more than one thread
    assert digest(big, threads=threads) == digest(big)


def test_base_digest_is_not_verified() -> None:
    new, old = changed(np.random.default_rng(5), 5000, density=0.1, steps=0.5)
    first, second = digest(old)
    delta = delta_pack(new, old.copy(), base_digest=(first, second ^ 1))
    assert delta.base_digest == (first, second ^ 1)
    with pytest.raises(InvalidArgument, match=r"base_digest .* two numbers of 64 bits"):
        delta_pack(new, old.copy(), base_digest=(-1, 0))


# ---- top-k


def test_topk_does_not_depend_on_the_number_of_threads() -> None:
    new, old = weights(np.random.default_rng(29), 3 * 64 * 4096 + 77)  # three parts, and an end
    ages = (np.arange(old.size) % 251 == 0).astype(np.uint8)
    deltas, moved = [], []
    for threads in (1, 2, 3):
        moved.append(ages.copy())
        deltas.append(
            topk_pack(new, old.copy(), budget=1000, ages=moved[-1], age_limit=1, threads=threads)
        )
    assert all(same(deltas[0], other) for other in deltas[1:])
    assert all(np.array_equal(moved[0], other) for other in moved[1:])


@pytest.mark.parametrize("threads", [2, 3])
def test_threshold_counts_every_change_on_several_threads(threads: int) -> None:
    new, old = weights(np.random.default_rng(31), 3 * 64 * 4096 + 77)
    keys = reference.change_key(new, old)[new != old]
    for key in np.unique(keys)[-20:].tolist():
        budget = int((keys >= key).sum()) - 1  # one change that is not counted, and `key` fits
        found = HostCodec(isa=None).topk_threshold(new, old, budget=budget, threads=threads)
        assert found == key + 1


# ---- memory


STARVED = """
import resource
import numpy as np
from rose.errors import OutOfMemory
from rose.transfer import delta_pack
new, shadow = np.ones(1 << 26, np.uint16), np.zeros(1 << 26, np.uint16)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20),) * 2)
try:
    delta_pack(new, shadow)
except OutOfMemory as error:
    print(error)
assert not shadow.any()
"""


def test_pack_without_memory_leaves_the_shadow() -> None:
    command = [sys.executable, "-c", STARVED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"no memory for {1 << 25} numbers of 4 bytes\n"


def big_zeros(count: int) -> Bits:
    return np.frombuffer(mmap.mmap(-1, count), np.uint8)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_than_2_31_elements() -> None:
    # Anonymous pages that nobody writes to cost no memory, but those that are read may.
    count = (1 << 31) + WIDE + 5
    where = np.array([0, (1 << 31) - 1, 1 << 31, (1 << 31) + WIDE - 1, count - 1])
    new, shadow = big_zeros(count), big_zeros(count)
    new[where] = [1, 0xFF, 7, 1, 9]
    delta = delta_pack(new, shadow, threads=2)
    assert shadow[where].tolist() == new[where].tolist()
    shadow[where] = 0
    positions, values = topk_unpack(delta, shadow)
    assert positions.tolist() == where.tolist()
    assert values.tolist() == new[where].tolist()
    assert delta_merge(delta, delta_pack(shadow, new)).changed == 0
    delta_apply(shadow, delta, verify=True)
    assert digest(shadow, threads=2) == delta.digest
    box = shadow[1:].reshape(-1, 4)[:, 1:3]  # a box whose offsets are beyond 2^31 too
    assert digest(np.ascontiguousarray(box[-1000:])) == digest(box[-1000:])
    delta_apply(shadow, delta, undo=True, verify=True)
    assert not shadow[where].any()
