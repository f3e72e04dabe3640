"""A delta in slices: what is reached is the target, what is not is the base, and back it goes."""

import functools
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.transfer import Application, Delta, delta_apply, delta_pack
from rose.transfer.codec import application as subject
from rose.transfer.codec.backend import HostBackend
from tests.reference import delta as reference
from tests.vectors.delta_v2 import changed

DENSE = 16_384
BLOCKS = 5
COUNT = (BLOCKS - 1) * DENSE + 77
PLENTY = 1 << 40
ONE_BLOCK = 0  # a budget for the least that a step can do


def versions(width: int, seed: int = 0) -> tuple[Any, Any]:
    """Return new and old; the third block does not change."""
    rng = np.random.default_rng(seed)
    new, old = changed(rng, COUNT, density=0.004, steps=0.7, width=width)
    new[2 * DENSE : 3 * DENSE] = old[2 * DENSE : 3 * DENSE]
    new[-1] += 1
    return new, old


def packed(new: Any, old: Any) -> Delta:
    return delta_pack(new, old.copy(), block_elements=DENSE)


def mixed(new: Any, old: Any, blocks: int) -> Any:
    """Return what is held when so many blocks are applied, by the reference."""
    held = old.copy()
    whole = packed(new, old)
    table = whole.entries.tolist()[:blocks] + [0] * (BLOCKS - blocks)
    words = whole.payload.tolist()[: sum(entry >> 44 for entry in table)]
    reference.apply(reference.Delta(COUNT, DENSE, table, words, whole.width), held)
    return held


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("stops_at", range(BLOCKS + 1))
def test_wherever_it_stops_undo_is_exact(width: int, stops_at: int) -> None:
    new, old = versions(width)
    held = old.copy()
    application = Application(held, packed(new, old))
    for _ in range(stops_at):
        if application.applied_blocks < stops_at:
            application.step(ONE_BLOCK)
    assert application.applied_blocks >= stops_at
    assert held.tolist() == mixed(new, old, application.applied_blocks).tolist()
    application.undo()
    assert application.applied_blocks == 0
    assert held.tolist() == old.tolist()
    assert application.run(PLENTY)
    assert application.is_done
    assert held.tolist() == new.tolist()
    application.undo()
    assert held.tolist() == old.tolist()


@functools.cache
def states(width: int, seed: int) -> list[Any]:
    """Return what is held after every block."""
    return [mixed(*versions(width, seed), blocks) for blocks in range(BLOCKS + 1)]


moves = st.lists(
    st.one_of(st.integers(0, 4000), st.just("undo"), st.just("stop"), st.just("go")), max_size=12
)


@given(moves, st.sampled_from([8, 16, 32]), st.integers(0, 3))
def test_whatever_is_asked_it_is_the_reference_of_what_it_says(
    asked: list[Any], width: int, seed: int
) -> None:
    new, old = versions(width, seed)
    expected = states(width, seed)
    held, stop = old.copy(), Event()
    application = Application(held, packed(new, old), stop=stop)
    for one in asked:
        before = application.applied_blocks
        if one == "undo":
            application.undo()
            assert application.applied_blocks == 0
        elif one in ("stop", "go"):
            stop.set() if one == "stop" else stop.clear()
        else:
            assert application.step(one) == application.is_done
            moved = application.applied_blocks - before
            assert moved == 0 if stop.is_set() or before == BLOCKS else moved > 0
        assert application.is_done == (application.applied_blocks == BLOCKS)
        assert np.array_equal(held, expected[application.applied_blocks])
    application.undo()
    assert held.tolist() == old.tolist()


def test_a_step_takes_what_fits_into_its_budget() -> None:
    new, old = versions(16)
    delta = packed(new, old)
    words = delta.entries >> np.uint64(44)
    changes = (delta.entries >> np.uint64(4)) & np.uint64(0xFFFFF)
    costs = [int(w) * 4 + int(c) * 32 for w, c in zip(words, changes, strict=True)]
    assert costs[2] == 0
    two = costs[0] + costs[1]
    # Blocks that do not change go with the one before them: they cost nothing.
    for budget, blocks in [(0, 1), (two - 1, 1), (two, 3), (two + costs[3] - 1, 3), (PLENTY, 5)]:
        application = Application(old.copy(), delta)
        application.step(budget)
        assert application.applied_blocks == blocks
    second = Application(old.copy(), delta)
    second.step(ONE_BLOCK)
    second.step(costs[1] + costs[3])  # the budget is the slice's, not that of all so far
    assert second.applied_blocks == 4


def test_a_dense_block_moves_no_more_than_it_covers() -> None:
    old = np.zeros(2 * DENSE, np.uint16)
    delta = packed(old + np.uint16(1), old)
    words = int(delta.entries[0] >> np.uint64(44))
    application = Application(old, delta)
    application.step(2 * (4 * words + 2 * DENSE) - 1)
    assert application.applied_blocks == 1
    application.undo()
    assert application.step(2 * (4 * words + 2 * DENSE))


def test_run_stops_between_slices() -> None:
    new, old = versions(16)
    held = old.copy()
    asked = iter([False, False, False, True])
    application = Application(held, packed(new, old), stop=lambda: next(asked))
    # It is asked before a slice and after it.
    assert not application.run(ONE_BLOCK)
    assert application.applied_blocks == 2
    assert held.tolist() == mixed(new, old, 2).tolist()


def test_a_stop_may_come_from_another_thread() -> None:
    new, old = versions(16)
    held, stop = old.copy(), Event()
    application = Application(held, packed(new, old), stop=stop)
    application.step(ONE_BLOCK)
    other = Thread(target=stop.set)
    other.start()
    other.join(timeout=200)
    assert not application.run(PLENTY)
    assert application.applied_blocks == 1
    application.undo()  # a stop does not keep it from being taken back
    assert held.tolist() == old.tolist()


def test_nothing_to_do_is_done() -> None:
    empty = np.empty(0, np.uint16)
    application = Application(empty, delta_pack(empty, empty.copy()))
    assert application.is_done
    assert application.step(1)
    application.undo()


def test_a_box_is_changed_slice_by_slice_where_it_lies() -> None:
    rng = np.random.default_rng(8)
    new, old = changed(rng, 256 * 240, density=0.01, steps=0.8)
    whole, fresh = old.reshape(256, 240).copy(), new.reshape(256, 240)
    part = whole[:, 3:203]
    delta = delta_pack(fresh[:, 3:203], part.copy(), block_elements=DENSE)
    application = Application(part, delta)
    application.step(ONE_BLOCK)
    application.step(ONE_BLOCK)
    expected = old.reshape(256, 240).copy()
    reached = expected[:, 3:203].ravel()
    reached[: 2 * DENSE] = fresh[:, 3:203].ravel()[: 2 * DENSE]
    expected[:, 3:203] = reached.reshape(256, 200)
    assert whole.tolist() == expected.tolist()
    application.undo()
    assert whole.ravel().tolist() == old.tolist()


# ---- what is refused, before anything changes


def test_wrong_weights_are_refused_before_the_first_slice() -> None:
    new, old = versions(16)
    delta = packed(new, old)
    held = old.copy()
    at = int(np.flatnonzero(new != old)[-1])
    held[at] += 1
    before = held.copy()
    with pytest.raises(CorruptData):
        Application(held, delta, verify=True)
    assert held.tolist() == before.tolist()
    assert Application(old.copy(), delta, verify=True).run(PLENTY)


def test_a_bad_last_block_is_refused_before_the_first_slice() -> None:
    new, old = versions(16)
    delta = packed(new, old)
    payload = delta.payload.copy()
    payload[-1] = 0xFFFFFFFF
    bad = Delta(COUNT, DENSE, 16, delta.entries, payload, delta.base_digest, delta.digest)
    held = old.copy()
    with pytest.raises(CorruptData, match="block 4"):
        Application(held, bad)
    assert held.tolist() == old.tolist()


def test_what_does_not_fit_is_named() -> None:
    new, old = versions(16)
    delta = packed(new, old)
    frozen = old.copy()
    frozen.setflags(write=False)
    with pytest.raises(InvalidArgument, match="weights is read-only"):
        Application(frozen, delta)
    with pytest.raises(InvalidArgument, match=str(COUNT)):
        Application(old[1:], delta)
    with pytest.raises(InvalidArgument, match="budget_bytes -1 must not be negative"):
        Application(old, delta).step(-1)


# ---- on a GPU, with a stand-in for its kernels


def test_slices_on_a_gpu_are_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from rose.transfer.codec.gpu import GpuBackend
    from tests.transfer.reference_codec import ReferenceCodec

    class Signed:
        """The host's bits as the back end of a GPU takes them."""

        def __init__(self, backend: GpuBackend) -> None:
            self._backend = backend

        def __getattr__(self, name: str) -> Any:
            def call(bits: Any, *rest: Any, **options: Any) -> Any:
                signed = torch.from_numpy(bits.view(f"i{bits.itemsize}"))
                return getattr(self._backend, name)(signed, *rest, **options)

            return call

    new, old = versions(16)
    delta = packed(new, old)
    backend = Signed(GpuBackend(ReferenceCodec()))
    monkeypatch.setattr(subject, "backend_of", lambda *_: backend)
    held = old.copy()
    application = Application(held, delta, verify=True)
    for blocks in range(1, BLOCKS + 1):
        assert application.step(ONE_BLOCK) == (blocks == BLOCKS)
        assert held.tolist() == mixed(new, old, application.applied_blocks).tolist()
    application.undo()
    assert held.tolist() == old.tolist()
    with pytest.raises(CorruptData):
        Application(new.copy(), delta, verify=True)


def test_an_application_is_what_delta_apply_does() -> None:
    new, old = versions(32)
    delta = packed(new, old)
    one, other = old.copy(), old.copy()
    delta_apply(one, delta)
    assert Application(other, delta).run(1000)
    assert one.tolist() == other.tolist() == new.tolist()


def test_after_an_interrupt_nobody_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = versions(16)
    weights = old.copy()
    application = Application(weights, packed(new, old))
    real = HostBackend.delta_apply

    def interrupted(*arguments: Any, **named: Any) -> None:
        real(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(HostBackend, "delta_apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        application.step(0)
    monkeypatch.undo()
    for call in (lambda: application.step(0), application.undo):
        with pytest.raises(Unavailable, match="nobody knows whether it is"):
            call()
