"""The parts of the suite of weights that can be tried in seconds; no figure is judged."""

from pathlib import Path

import numpy as np
import pytest

from bench.bench_weights import MODELS, drawn_versions, through_zstd, updates
from bench.entropy import class_entropy_bytes
from bench.weight_ends import Shapes, flip, two_ends
from bench.weight_faults import FaultLoop

TINY: Shapes = {"model.embed_tokens.weight": (300, 64), "b": (7,), "c": (1000, 33)}


def test_models_have_the_elements_of_the_published_ones() -> None:
    counts = {
        name: sum(int(np.prod(shape)) for shape in shapes.values())
        for name, shapes in MODELS.items()
    }
    assert counts == {"0.5b": 494_032_768, "1.5b": 1_543_714_304}


def test_a_patch_runs_on_from_row_to_row_and_flipping_twice_changes_nothing() -> None:
    patch = np.arange(1, 6, dtype=np.uint16)
    rows = [np.zeros(count, np.uint16) for count in (3, 0, 9)]
    flip(rows, patch)
    assert np.concatenate(rows).tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    flip(rows, patch)
    assert not np.concatenate(rows).any()


def test_drawn_versions_have_the_recorded_statistics() -> None:
    new, old = drawn_versions()
    changed = np.count_nonzero(new != old)
    assert changed == 68_782
    assert 0.5 < class_entropy_bytes(new, old) < 0.9


def test_an_engine_holds_the_trainers_bits_after_each_way_to_update_it() -> None:
    with two_ends(TINY) as ends:
        assert not ends.is_equal()
        with updates(ends, 0.01) as update:  # compares the bits at the end
            ends.run(("keep_other",), ("keep_other",))
            took = update()
            assert took.values[1] > 0
            assert min(took.wall_s, took.trainer_cpu_s, took.engine_cpu_s) > 0
            through_zstd(ends)
            assert ends.trainer("other_bits") == ends.engine("other_bits")
            ends.engine("clear")
            ends.run(("gloo",), ("gloo",))


@pytest.fixture
def loop(tmp_path: Path):
    made = FaultLoop(tmp_path)
    yield made
    made.close()


def test_no_fault_leaves_other_bits_in_silence(loop: FaultLoop) -> None:
    loop.run(40)
    assert loop.silent == []
    assert {"torn", "scribble", "move", "drop"} <= set(loop.faults)
    assert loop.errors["move"] >= loop.faults["move"] / 2


def test_other_bits_that_nothing_reports_are_found_by_the_loop(
    loop: FaultLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_is_found", lambda _one: False)
    monkeypatch.setattr(loop, "_update", lambda: True)  # so no commit compares the tiles
    loop._scribble()
    loop._settle("scribble", is_whole=False)
    assert loop.silent == ["scribble"]
