"""Calls of ranks and the answers: what arrives is what was sent, or it is refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.sharded import words

CALLS = (words.AskTensors, words.Join, words.Aim, words.Meet, words.AskStep)
ANSWERS = (words.Tensors, words.Joined, words.Aimed, words.Met, words.Stepped)


@given(st.data())
def test_words_survive_a_round_trip_and_stay_apart(data: st.DataObject) -> None:
    kind: Any = data.draw(st.sampled_from(CALLS + ANSWERS))
    sent = data.draw(st.from_type(kind))
    try:
        content = words.packed(sent)
    except OverflowError:
        reject()  # a number beyond 64 bits, which nobody sends
    if kind in CALLS:
        assert words.call_of(content) == sent
        with pytest.raises(CorruptData, match="are no answer to a rank"):
            words.answer_of(content, words.Met)
    else:
        assert words.answer_of(content, kind) == sent
        other = words.Met if kind is not words.Met else words.Aimed
        with pytest.raises(CorruptData, match=f"got {kind.__name__} instead of {other.__name__}"):
            words.answer_of(content, other)
        with pytest.raises(InvalidArgument, match="are no call of a rank"):
            words.call_of(content)


@given(st.one_of(st.binary(), st.builds(msgspec.msgpack.encode, st.lists(st.text()))))
def test_other_bytes_are_refused(content: bytes) -> None:
    if content == words.packed(words.AskTensors()):
        return
    with pytest.raises(InvalidArgument):
        words.call_of(content)
    with pytest.raises(CorruptData):
        words.answer_of(content, words.Met)
