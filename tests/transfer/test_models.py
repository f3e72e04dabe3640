"""Mappings of tensors: one call for a model does what a call for each tensor does."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rose import _core
from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_apply, delta_pack
from tests.transfer.twins import same
from tests.vectors.delta_v2 import changed

Model = dict[str, Any]
COUNTS = {"embed": (40_000, 16), "norm": (0, 16), "scale": (33, 8), "head": (20_001, 32)}


def models() -> tuple[Model, Model]:
    rng = np.random.default_rng(5)
    pairs = {
        name: changed(rng, count, density=0.05, steps=0.7, width=width)
        for name, (count, width) in COUNTS.items()
    }
    return {name: new for name, (new, _) in pairs.items()}, {
        name: old for name, (_, old) in pairs.items()
    }


def copied(model: Model) -> Model:
    return {name: one.copy() for name, one in model.items()}


def equal(one: Model, other: Model) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def each_packed(news: Model, olds: Model) -> dict[str, Delta]:
    return {name: delta_pack(news[name], olds[name].copy()) for name in news}


def test_model_is_packed_applied_and_undone_as_its_tensors_are() -> None:
    news, olds = models()
    expected, shadow = each_packed(news, olds), copied(olds)
    known = {"head": expected["head"].base_digest}
    deltas = delta_pack(news, shadow, base_digest=known, threads=2)
    assert list(deltas) == list(news)
    assert all(same(deltas[name], expected[name]) for name in news)
    assert equal(shadow, news)
    delta_apply(shadow, deltas, undo=True, verify=True)
    assert equal(shadow, olds)
    delta_apply(shadow, deltas, verify=True)
    assert equal(shadow, news)


def test_model_without_tensors_has_no_deltas() -> None:
    assert delta_pack({}, {}) == {}
    delta_apply({}, {})


@pytest.mark.parametrize("undo", [False, True])
def test_model_is_changed_whole_or_not_at_all(*, undo: bool) -> None:
    news, olds = models()
    deltas = each_packed(news, olds)
    before = news if undo else olds
    held, wrong = copied(before), dict(deltas)
    payload = wrong["head"].payload.copy()
    payload[-1] = 0xFFFFFFFF
    wrong["head"] = replace(wrong["head"], payload=payload)
    with pytest.raises(CorruptData, match=r"^weights\['head'\]: block 0 "):
        delta_apply(held, wrong, undo=undo)
    assert equal(held, before)
    held["head"][7] ^= 1
    wrong = {**deltas, "head": replace(deltas["head"], base_digest=(1, 1), digest=(1, 1))}
    left = copied(held)
    with pytest.raises(CorruptData, match=r"^weights\['head'\]: "):
        delta_apply(held, wrong, undo=undo, verify=True)
    assert equal(held, left)


def test_pack_that_fails_leaves_every_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    news, olds = models()
    shadow, pack = copied(olds), _core.delta_pack

    def fails_at_the_last(new: Any, *args: Any, **options: Any) -> Any:
        if new.size == COUNTS["head"][0]:
            raise MemoryError
        return pack(new, *args, **options)

    monkeypatch.setattr(_core, "delta_pack", fails_at_the_last)
    with pytest.raises(MemoryError):
        delta_pack(news, shadow)
    assert equal(shadow, olds)


def test_mappings_with_other_names_or_shapes_are_refused() -> None:
    news, olds = models()
    deltas = each_packed(news, olds)
    with pytest.raises(InvalidArgument, match="must be a mapping with the same names"):
        delta_pack(news, {name: olds[name] for name in ("embed", "head")})
    with pytest.raises(InvalidArgument, match="must be a mapping with the same names"):
        delta_pack(news, olds["embed"])
    with pytest.raises(InvalidArgument, match="must be a mapping with the same names"):
        delta_apply(olds["embed"], deltas)
    with pytest.raises(InvalidArgument, match=re.escape("new['head'] has the shape")):
        delta_pack(news, {**olds, "head": olds["head"][1:]})
    tied = {**copied(olds), "tied": olds["embed"][5:]}
    tied["embed"] = olds["embed"]
    says = re.escape("shadow['embed'] and shadow['tied'] share memory: pass tied tensors once")
    with pytest.raises(InvalidArgument, match=says):
        delta_pack({**news, "tied": news["embed"][5:]}, tied)
    says = says.replace("shadow", "weights")
    with pytest.raises(InvalidArgument, match=says):
        delta_apply(tied, {**deltas, "tied": deltas["embed"]})


def test_columns_of_one_matrix_share_no_memory() -> None:
    whole = np.zeros((6, 10), np.uint16)
    columns = {"q": whole[:, :4], "k": whole[:, 4:]}
    news = {name: np.ones_like(one) for name, one in columns.items()}
    delta_pack(news, columns)
    assert (whole == 1).all()
