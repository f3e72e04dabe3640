"""The trained model: its tasks, its log, and that it is trained once."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from bench.trained.record import Recording, record
from bench.trained.settings import Point, Pretraining, Run, Settings
from bench.trained.statistics import Span, spans_of, step_statistics
from bench.trained.store import trained_steps
from bench.trained.tasks import LENGTHS, Language, draw_examples, draw_task
from rose.engines.transformers import load_model
from rose_lab.demo.environments import Tokenizer
from rose_lab.demo.environments.text import EOS, PAD

Bits = npt.NDArray[np.uint16]

SMALL = Settings(
    model="micro-policy",
    pretraining=Pretraining(steps=150, examples=64, lr=4e-3),
    runs=(Run(1e-5, 4, 3), Run(1e-4, 2, 2)),
    threads=1,
    points=(Point("near", 0, 1), Point("far", 0, 2), Point("coarse", 1, 1)),
)


# ---- tasks


def plain_answer(question: str) -> str:
    if "+" in question:
        return str(sum(map(int, question.split("+"))))
    text = question[1:]
    return {"=": text, "<": text[::-1], "^": "".join(sorted(text))}[question[0]]


def test_every_answer_is_right_and_prompts_of_a_length_are_alike() -> None:
    random, tokenizer = np.random.default_rng(1), Tokenizer()
    for length in LENGTHS:
        tasks = [draw_task(random, length) for _ in range(100)]
        assert {len(task.prompt) for task in tasks} == {length + 3}
        for task in tasks:
            assert task.answer[-1] == EOS
            assert tokenizer.decode(task.answer) == plain_answer(tokenizer.decode(task.prompt))
            # A rollout has room for the answer and its end.
            assert len(task.answer) <= length + 1


def test_examples_are_padded_behind_their_end() -> None:
    rows = np.array(draw_examples(np.random.default_rng(2), 50))
    for row in rows.tolist():
        end = row.index(EOS)
        assert PAD not in row[:end]
        assert set(row[end + 1 :]) <= {PAD}


def test_few_words_make_up_most_of_the_language() -> None:
    random = np.random.default_rng(3)
    rows = Language(random).draw(random, 200, 48)
    assert {len(row) for row in rows} == {48}
    words = " ".join(Tokenizer().decode(row) for row in rows).split()
    counts = np.sort(np.unique(words, return_counts=True)[1])[::-1]
    assert counts[:20].sum() > 0.4 * counts.sum()


# ---- statistics


def test_a_step_is_counted_by_kind_exponent_and_size() -> None:
    old = np.array([0x3F80, 0x3F80, 0xBF80, 0x0001, 0x0000, 0x4000], np.uint16)
    new = np.array([0x3F81, 0x3F80, 0xBF7E, 0x0005, 0x8000, 0x4000], np.uint16)
    spans = [Span("mlp", slice(0, 2)), Span("attn", slice(2, 4)), Span("mlp", slice(4, 6))]
    statistics = step_statistics(new, old, spans)
    assert statistics["changed"] == 4
    assert statistics["density"] == pytest.approx(4 / 6)
    assert statistics["density_by_kind"] == {"mlp": 0.5, "attn": 1.0}
    assert statistics["exponents"] == {"0": [2, 2], "127": [3, 2], "128": [1, 0]}
    assert statistics["ulp"] == {"1": 0.25, "2": 0.25, "3_to_4": 0.25, "5_or_more": 0.25}


def test_a_step_that_changed_nothing_has_no_shares() -> None:
    bits = np.arange(8, dtype=np.uint16)
    statistics = step_statistics(bits, bits, [Span("head", slice(0, 8))])
    assert statistics["changed"] == 0
    assert "ulp" not in statistics


def test_spans_cover_the_row_in_its_order() -> None:
    model = load_model("micro-policy", seed=0)
    spans = spans_of(model)
    assert [span.where.start for span in spans[1:]] == [span.where.stop for span in spans[:-1]]
    assert spans[-1].where.stop == sum(one.numel() for one in model.parameters())
    kinds = {
        name: span.kind for (name, _), span in zip(model.named_parameters(), spans, strict=True)
    }
    assert kinds["model.embed_tokens.weight"] == "embed"
    assert kinds["model.layers.0.self_attn.q_proj.weight"] == "attn"
    assert kinds["model.layers.0.self_attn.q_norm.weight"] == "norm"
    assert kinds["model.layers.1.post_attention_layernorm.weight"] == "norm"
    assert kinds["model.layers.1.mlp.down_proj.weight"] == "mlp"


# ---- training


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record(SMALL)


@pytest.mark.slow
def test_training_is_the_same_each_time(recording: Recording) -> None:
    again = record(SMALL)
    assert all(map(np.array_equal, again.versions, recording.versions))
    assert again.log == recording.log


def test_the_log_is_of_the_versions_that_are_kept(recording: Recording) -> None:
    for run, versions in zip(recording.log["runs"], recording.versions, strict=True):
        densities = [float((new != old).mean()) for old, new in pairwise(versions)]
        assert [step["density"] for step in run["steps"]][-len(densities) :] == densities
        assert min(densities) > 0
    assert [len(versions) for versions in recording.versions] == [3, 2]
    assert [len(run["steps"]) for run in recording.log["runs"]] == [4, 2]
    far = recording.log["points"]["far"]
    assert far["changed"] == int((recording.versions[0][2] != recording.versions[0][0]).sum())


def test_a_larger_lr_changes_more(recording: Recording) -> None:
    slow, fast = (run["steps"][1]["density"] for run in recording.log["runs"])
    assert fast > 2 * slow


# ---- the store


class Maker:
    """Stands for training, and notes whose versions were asked for."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self.made: list[Settings] = []
        self.recording = Recording(
            tuple(random.integers(0, 1 << 16, (kept, 999)).astype(np.uint16) for kept in (3, 2)),
            {"pretraining_loss": 1.5, "runs": [], "points": {}},
        )

    def __call__(self, settings: Settings) -> Recording:
        self.made.append(settings)
        return self.recording


@pytest.fixture
def make() -> Maker:
    return Maker()


def test_what_is_kept_is_not_made_again(tmp_path: Path, make: Maker) -> None:
    folder = tmp_path / "build" / "trained"
    first = trained_steps(SMALL, folder=folder, make=make)
    second = trained_steps(SMALL, folder=folder, make=make)
    assert make.made == [SMALL]
    for kept in (first, second):
        assert all(map(np.array_equal, kept.versions, make.recording.versions))
        assert kept.log == make.recording.log
    new, old = second.pair(SMALL.points[1])
    assert np.array_equal(new, make.recording.versions[0][2])
    assert np.array_equal(old, make.recording.versions[0][0])


def test_other_settings_are_made_anew(tmp_path: Path, make: Maker) -> None:
    other = replace(SMALL, prompts=SMALL.prompts + 1)
    for settings in (SMALL, other, other, SMALL):
        trained_steps(settings, folder=tmp_path / "trained", make=make)
    assert make.made == [SMALL, other, SMALL]


@pytest.mark.parametrize("name", ["log.json", "run-0.npy", "run-1.npy"])
@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_damaged_files_are_made_anew(tmp_path: Path, make: Maker, name: str, damage: str) -> None:
    trained_steps(SMALL, folder=tmp_path / "trained", make=make)
    path = tmp_path / "trained" / name
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[:-5])
    elif damage == "changed":
        content[len(content) // 2] ^= 1
        # A log is read as it is, so what counts in it is whose it is.
        path.write_bytes(content.replace(b'"fingerprint": "', b'"fingerprint": "0'))
    kept = trained_steps(SMALL, folder=tmp_path / "trained", make=make)
    assert len(make.made) == 2
    assert all(map(np.array_equal, kept.versions, make.recording.versions))
