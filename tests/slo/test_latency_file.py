"""What a model has learned survives a restart to the last bit, and damage never passes for it."""

import json
import math
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import LatencyModel
from rose.errors import CorruptData, InvalidArgument
from rose.slo import Policy, latency_file
from rose.slo.latency_file import (
    load_latency_model,
    load_text,
    new_latency_model,
    save_latency_model,
    save_text,
)

NAMES = ("decode_sequences", "context_tokens", "prefill_tokens")
steps = st.lists(st.tuples(*(st.floats(0, 1e6) for _ in range(4))), max_size=40)


def features_of(values) -> dict[str, float]:
    return dict(zip(NAMES, values, strict=True))


def learned_from(taken, policy: Policy) -> LatencyModel:
    model = new_latency_model(policy, step_tokens=512)
    for *values, actual_ms in taken:
        model.observe(actual_ms, **features_of(values))
    return model


def saved(model: LatencyModel) -> str:
    return save_text(model, identity="a device")


def predicted_ms(model: LatencyModel, values) -> float:
    return model.forecast(**features_of(values)).predicted_ms


@given(before=steps, after=steps, window=st.sampled_from([1, 7, 512]))
def test_a_loaded_model_predicts_on_to_the_last_bit(before, after, window: int) -> None:
    policy = Policy(epsilon=0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency_file, "RESIDUAL_WINDOW", window)
        patch.setattr(latency_file, "ADAPTATION_SHARE", 2.0)
        model = learned_from(before, policy)
        loaded = load_text(saved(model), policy)
    assert (loaded.observations, loaded.coverage) == (model.observations, model.coverage)
    assert saved(loaded) == saved(model)
    for *values, actual_ms in after:
        assert predicted_ms(loaded, values) == predicted_ms(model, values)
        for one in (loaded, model):
            one.observe(actual_ms, **features_of(values))
    assert loaded.state().weights == model.state().weights


SAVED = saved(
    learned_from([(1.0, 10.0 * n, n % 3 * 100.0, 5.0 + n % 7) for n in range(30)], Policy())
)


@given(at=st.integers(0, len(SAVED) - 1), to=st.characters(codec="ascii"))
def test_a_changed_character_is_found_or_changes_nothing(at: int, to: str) -> None:
    text = SAVED[:at] + to + SAVED[at + 1 :]
    try:
        loaded = load_text(text, Policy())
    except CorruptData:
        return
    assert saved(loaded) == SAVED


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", "[" * 100_000, '{"format": "rose latency model"}', SAVED[:-20]],
)
def test_what_is_no_saved_model_is_one_sentence(text: str) -> None:
    with pytest.raises(CorruptData, match="not a saved latency model"):
        load_text(text, Policy())


def forged(**changed: object) -> str:
    document = json.loads(SAVED)
    document["learned"] |= changed
    content = [document["identity"], document["learned"]]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    document["crc32"] = zlib.crc32(canonical.encode())
    return json.dumps(document)


@pytest.mark.parametrize(
    "changed",
    [
        {"weights": [1.0, math.nan, 0.0, 0.0, 0.0]},
        {"weights": [1.0, 1e17, 0.0, 0.0, 0.0]},
        {"weights": [1.0, -1.0, 0.0, 0.0, 0.0]},
        {"weights": [1.0]},
        {"weights": None},
        {"covariance": [[0.0] * 5] * 5},
        {"covariance": [[float(i <= j) + (i == j) for i in range(5)] for j in range(5)]},
        {"covariance": [[math.inf] * 5] * 5},
        {"levels": [0.9, 0.0, 0.0]},
        {"step_tokens": 0},
        {"levels": [math.nan, 0.0, 0.0]},
        {"scores": [[1.0] * 1025, [], []]},
        {"scores": [[-1.0], [], []]},
        {"scores": [[math.nan], [], []]},
        {"scores": [["1"], [], []]},
        {"seen": [31, 0, 0]},
        {"seen": [0, 0, 30]},
        {"observations": 3},
        {"observations": -1},
        {"misses": 31},
        {"more": 1.0},
    ],
)
def test_numbers_that_no_model_has_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(CorruptData):
        load_text(forged(**changed), Policy())


def test_another_version_is_refused() -> None:
    document = json.loads(SAVED) | {"version": 1}
    with pytest.raises(CorruptData, match="version 2"):
        load_text(json.dumps(document), Policy())


def test_a_model_is_saved_to_a_file_and_found_there(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    assert load_latency_model(path, Policy()) is None
    model = learned_from([(1.0, 10.0, 0.0, 5.0)] * 3, Policy())
    for _ in range(2):  # over the old one too
        save_latency_model(model, path, identity="a device")
    assert [one.name for one in tmp_path.iterdir()] == ["latency.json"]
    loaded = load_latency_model(path, Policy())
    assert loaded is not None
    assert loaded.state().weights == model.state().weights
    assert load_latency_model(path, Policy(), identity="another device") is None
    assert load_latency_model(path, Policy(), identity="a device") is not None


STEADY = [(1.0, 10.0, 0.0, 5.0)] * 300


def test_the_scores_of_an_earlier_run_count_once_eight_steps_confirm_them() -> None:
    model = learned_from(STEADY, Policy())
    loaded = load_text(saved(model), Policy())
    features = features_of((1.0, 10.0, 0.0))
    for left in range(8, 0, -1):
        assert loaded.evidence(**features).missing == left
        assert math.isinf(loaded.forecast(**features).upper_ms)
        loaded.observe(5.0, **features)
    assert loaded.evidence(**features).missing == 0
    upper_ms = model.forecast(**features).upper_ms
    assert loaded.forecast(**features).upper_ms == pytest.approx(upper_ms, rel=1e-6)


def test_the_scores_of_a_machine_that_was_faster_are_dropped() -> None:
    loaded = load_text(saved(learned_from(STEADY, Policy())), Policy())
    features = features_of((1.0, 10.0, 0.0))
    for _ in range(8):
        loaded.observe(15.0, **features)
    assert loaded.evidence(**features).scores == 8
    assert math.isinf(loaded.forecast(**features).upper_ms)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", SAVED.encode()[:-9]])
def test_a_damaged_file_is_named_with_what_helps(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "latency.json"
    path.write_bytes(content)
    with pytest.raises(CorruptData, match=r"latency\.json: .*delete it"):
        load_latency_model(path, Policy())


def test_a_place_that_cannot_be_written_or_read_is_the_callers_to_mend(tmp_path: Path) -> None:
    model = new_latency_model(Policy(), step_tokens=512)
    with pytest.raises(InvalidArgument, match=r"cannot write .*latency\.json"):
        save_latency_model(model, tmp_path / "nowhere" / "latency.json", identity="")
    with pytest.raises(InvalidArgument, match="cannot read the latency model"):
        load_latency_model(tmp_path, Policy())
    assert list(tmp_path.iterdir()) == []
