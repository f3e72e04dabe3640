"""Stop texts: found wherever they lie, and cut as vLLM cuts them."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.adapters.stops import OutputText, Stop


@dataclass
class Letters:
    """A tokenizer whose tokens are texts of its vocabulary."""

    words: tuple[str, ...]
    eos_token_id: int | None = None

    def decode(self, token_ids, *, skip_special_tokens: bool = True) -> str:
        return "".join(self.words[one] for one in token_ids)


WORDS = ("a", "b", "ab", "ba", "aab", "", "c")
TOKENS = st.lists(st.integers(0, len(WORDS) - 1), max_size=14)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


def cut(tokens, stops, *, is_including: bool, min_tokens: int):
    """The twin, as vLLM does it: token by token, the whole text each time."""
    text = ""
    for place, token in enumerate(tokens):
        before, text = text, text + WORDS[token]
        if place + 1 <= min_tokens or text == before:
            continue
        for stop in stops:
            at = text.find(stop, max(0, len(before) - len(stop) + 1))
            if at >= 0:
                return text[: at + len(stop) * is_including], Stop(stop, place + 1)
    return text, None


def said(tokens, stops, sizes, *, is_including: bool, min_tokens: int):
    output = OutputText(
        Letters(WORDS),
        skip_special_tokens=True,
        stops=stops,
        is_including=is_including,
        min_tokens=min_tokens,
    )
    at, shown = 0, []
    for size in (*sizes, len(tokens)):
        end = min(at + size, len(tokens))
        stop = output.add(tokens[at:end], is_last=end == len(tokens))
        shown.append("".join(output.pieces))
        if stop is not None or end == len(tokens):
            return shown, stop
        at = end
    return shown, None


@settings(deadline=None, max_examples=500)
@given(TOKENS, STOPS, st.lists(st.integers(0, 5), max_size=8), st.booleans(), st.integers(0, 4))
def test_any_pieces_give_the_text_and_the_stop_of_the_twin(
    tokens, stops, sizes, is_including, min_tokens
) -> None:
    how = {"is_including": is_including, "min_tokens": min_tokens}
    text, stop = cut(tokens, stops, **how)
    shown, found = said(tokens, stops, sizes, **how)
    assert (shown[-1], found) == (text, stop)
    for earlier in shown:
        assert text.startswith(earlier)  # nothing is taken back


def test_a_stop_that_begins_in_an_earlier_piece_is_found_in_a_piece_of_several_tokens() -> None:
    output = OutputText(Letters(("x", "E", "ND", "y")), skip_special_tokens=True, stops=("END",))
    assert output.add([0, 1]) is None
    assert output.add([2, 3]) == Stop("END", 3)
    assert "".join(output.pieces) == "x"


def test_text_is_held_back_only_while_it_may_begin_a_stop() -> None:
    output = OutputText(Letters(("x", "\n", "y")), skip_special_tokens=True, stops=("\n\n",))
    shown = []
    for token in (0, 1, 2, 1):
        assert output.add([token]) is None
        shown.append("".join(output.pieces))
    assert shown == ["x", "x", "x\ny", "x\ny"]
    assert output.add([1]) == Stop("\n\n", 5)
    assert "".join(output.pieces) == "x\ny"


@pytest.mark.parametrize("is_including", [False, True])
def test_text_after_the_stop_in_the_same_token_is_dropped(is_including) -> None:
    output = OutputText(
        Letters(("say", "END of it")),
        skip_special_tokens=True,
        stops=("END",),
        is_including=is_including,
    )
    assert output.add([0, 1, 0]) == Stop("END", 2)
    assert "".join(output.pieces) == ("sayEND" if is_including else "say")
