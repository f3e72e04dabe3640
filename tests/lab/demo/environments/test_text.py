"""Text becomes ids and comes back; nothing is refused."""

from hypothesis import given
from hypothesis import strategies as st

from rose_lab.demo.environments.text import EOS, PAD, SAY, SEE, UNKNOWN, VOCABULARY, Tokenizer

TEXT = st.text(st.sampled_from([chr(code) for code in range(32, 127)] + ["\n"]))
words = Tokenizer()


@given(TEXT)
def test_text_of_the_alphabet_comes_back(text: str) -> None:
    assert words.decode(words.encode(text)) == text


@given(st.text())
def test_any_text_has_one_id_for_each_character(text: str) -> None:
    ids = words.encode(text)
    assert len(ids) == len(text)
    assert all(PAD < one < VOCABULARY for one in ids)
    assert not {PAD, EOS, SEE, SAY} & set(ids)  # text cannot forge a mark
    assert words.encode(words.decode(ids)) == ids


@given(st.lists(st.integers(-(1 << 40), 1 << 40)))
def test_any_ids_have_a_text(ids: list[int]) -> None:
    marks = sum(one in {PAD, EOS, SEE, SAY} for one in ids)
    assert len(words.decode(ids)) == len(ids) - marks


def test_what_is_unknown_can_be_seen() -> None:
    assert words.decode([65, UNKNOWN, 5, 128, -1, 66]) == "A\ufffd\ufffd\ufffd\ufffdB"
    assert words.encode("é\t") == (UNKNOWN, UNKNOWN)


def test_a_prompt_is_an_observation_between_its_marks() -> None:
    assert words.prompt("hi\n") == (SEE, 104, 105, 10, SAY)
    assert words.decode((*words.prompt("hi"), 33, EOS, PAD)) == "hi!"
