"""Named tensors: tied memory is found by its elements, and other names are matched or refused."""

import numpy as np
import pytest
import torch

from rose.errors import InvalidArgument
from rose.transfer.named import NamedRow, matched, named_rows


def published(tensors, **options) -> list[NamedRow]:
    """Return what a receiver knows of a publisher's tensors."""
    rows = named_rows(tensors, **options)
    return [NamedRow(one.stored, one.aliases, None, None) for one in rows]


def match(own, theirs) -> dict[str, list[object]]:
    return matched(named_rows(own, is_written=True), published(theirs), what="publisher")


def names(tensors, **options) -> list[tuple[str, ...]]:
    return [one.names for one in named_rows(tensors, **options)]


def test_two_names_are_one_tensor_if_they_have_the_same_elements_in_the_same_order() -> None:
    w = torch.arange(16.0).reshape(4, 4)
    assert names({"embed": w, "head": w, "flat": w.view(16)}) == [("embed", "head", "flat")]
    assert names({"a": w[:, :2], "b": w[:2, :]}) == [("a",), ("b",)]
    assert names({"a": w, "b": w.t()}) == [("a",), ("b",)]
    assert names({"a": w, "b": w.view(torch.int32)}) == [("a", "b")]
    assert names({"a": w[:0], "b": w[:0]}) == [("a",), ("b",)]


def test_rows_hold_the_elements_in_order() -> None:
    w = torch.arange(16.0).reshape(4, 4)
    rows = {one.stored.name: one.row for one in named_rows({"a": w[:, :2], "b": w.t()})}
    assert rows["a"].tobytes() == w[:, :2].contiguous().numpy().tobytes()
    assert rows["b"].tobytes() == w.t().contiguous().numpy().tobytes()


@pytest.mark.parametrize(
    "own",
    [
        lambda w: {"qkv": w, "q": w[:2]},
        lambda w: {"whole": w.view(-1), "half": w.view(-1).view(torch.int16)},
        lambda w: {"a": w[:3], "b": w[1:]},
    ],
)
def test_an_engine_must_not_pass_memory_twice(own) -> None:
    tensors = own(torch.zeros(4, 4))
    one, other = tensors
    with pytest.raises(InvalidArgument, match="share memory here without being equal") as refused:
        named_rows(tensors, is_written=True)
    assert one in str(refused.value)
    assert other in str(refused.value)


def test_parts_of_one_buffer_are_tensors_of_their_own() -> None:
    flat = torch.zeros(10)
    assert len(named_rows({"a": flat[:4], "b": flat[4:]}, is_written=True)) == 2


def test_a_tied_tensor_fills_both_tensors_of_an_engine_that_does_not_tie() -> None:
    w, embed, head = torch.ones(4, 2), torch.zeros(4, 2), torch.zeros(4, 2)
    rows = match({"embed": embed, "head": head}, {"embed": w, "head": w})
    assert [len(some) for some in rows.values()] == [2]


@pytest.mark.parametrize(
    "theirs", [{"embed": 0, "head": 0}, {"head": 0, "embed": 0}, {"head": 0}, {"embed": 0}]
)
def test_a_tying_engine_follows_any_of_its_published_names(theirs) -> None:
    w, own = torch.ones(4, 2), torch.zeros(4, 2)
    rows = match({"embed": own, "head": own}, dict.fromkeys(theirs, w))
    assert [len(some) for some in rows.values()] == [1]


def test_a_tying_engine_refuses_two_published_tensors() -> None:
    own = torch.zeros(4, 2)
    with pytest.raises(
        InvalidArgument, match="embed and head share memory here, but are different"
    ):
        match({"embed": own, "head": own}, {"embed": torch.ones(4, 2), "head": torch.ones(4, 2)})


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "base_model.model.", "a._orig_mod."])
def test_names_that_wrappers_add_are_removed(wrapper: str) -> None:
    bare = "a.w" if wrapper == "a._orig_mod." else "w"
    assert names({f"{wrapper}w": torch.zeros(2)}) == [(bare,)]


def test_a_prefix_of_some_names_only_is_part_of_them() -> None:
    assert names({"module.w": np.zeros(2, "f4"), "w": np.zeros(2, "f4")}) == [("module.w",), ("w",)]


def test_a_module_is_its_state_dict() -> None:
    model = torch.compile(torch.nn.Linear(2, 2))
    assert names(model) == [("bias",), ("weight",)]


def test_names_can_be_mapped_and_left_out() -> None:
    own = {"model.language_model.w": np.zeros(2, "f4"), "vision.w": np.zeros(2, "f4")}

    def bare(name: str) -> str | None:
        return name.replace("language_model.", "") if name.startswith("model.") else None

    assert names(own, names=bare) == [("model.w",)]
    assert names(own, names={"vision.w": "v"}) == [("model.language_model.w",), ("v",)]


@pytest.mark.parametrize("names", [{"a": "b"}, lambda _: "x"])
def test_two_tensors_cannot_be_published_under_one_name(names) -> None:
    own = {"a": np.ones(3, "f4"), "b": np.zeros(3, "f4")}
    with pytest.raises(InvalidArgument, match="two tensors are named"):
        named_rows(own, names=names)
    assert len(named_rows(own, names=names, is_written=True)) == 2


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"zz": "q"}, "names= maps 'zz', which is no tensor's name"),
        (5, "must be a mapping or a function, got 5"),
        (lambda _: 5, "must map a to text or None, got 5"),
    ],
)
def test_names_that_map_nothing_are_refused(names, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        named_rows({"a": np.zeros(1, "f4")}, names=names)


def test_other_names_are_shown_with_the_way_out() -> None:
    own = {f"model.language_model.l{at}": np.zeros(1, "f4") for at in range(5)}
    theirs = {f"model.l{at}": np.zeros(1, "f4") for at in range(5)}
    with pytest.raises(InvalidArgument) as refused:
        match(own, theirs)
    assert str(refused.value) == (
        "the tensors must be those of publisher: model.l0, model.l1, model.l2 and 2 more are "
        "missing, and model.language_model.l0, model.language_model.l1, model.language_model.l2 "
        "and 2 more are not among them; pass names= to map own names to published names"
    )


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({}, "at least one entry"),
        ({1: np.zeros(1, "f4")}, "the name of a tensor must be text, got 1"),
        ({"\ud800": np.zeros(1, "f4")}, "UTF-8"),
        ({"n" * 70_000: np.zeros(1, "f4")}, "at most 65536 characters, got 70000"),
        ({"w": torch.zeros(1, device="meta")}, "w is on the device meta"),
        ([np.zeros(1, "f4")], "pass tensors by name, or a module with state_dict"),
        ({"w": None}, "w is a NoneType"),
    ],
)
def test_tensors_without_elements_or_names_are_refused(tensors, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        named_rows(tensors)
