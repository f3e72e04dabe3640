"""Which requests are turns of one conversation, and when conversations end."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.adapters.conversations import BLOCK_TOKENS, Conversation, Conversations, Prompt
from rose.errors import InvalidArgument

LONG = tuple(range(BLOCK_TOKENS))


@dataclass
class Twin:
    """The rules, in words of their own: every conversation is compared token by token."""

    talks: list[dict] = field(default_factory=list)

    def find(self, prompt, session, job) -> int | None:
        best, best_rank = None, None
        for number, talk in enumerate(self.talks):
            if talk is None or talk["job"] != job or talk["session"] != session:
                continue
            last = talk["prompt"]
            if session is None and (
                len(last) < BLOCK_TOKENS or len(prompt) <= len(last) or prompt[: len(last)] != last
            ):
                continue
            if session is not None and talk["busy"]:
                continue
            whole = last + talk["output"]
            same = 0
            while same < min(len(whole), len(prompt)) and whole[same] == prompt[same]:
                same += 1
            rank = same, not talk["busy"]
            if best_rank is None or rank > best_rank:
                best, best_rank = number, rank
        if best is None or self.talks[best]["busy"]:
            return None
        return best

    def equals(self, one: int | None, other: int | None) -> bool:
        """Return whether two conversations are equally good: only their numbers differ."""
        if one is None or other is None:
            return one is other
        return self.talks[one] == self.talks[other]


# Prompts that share long beginnings, and outputs of few tokens, so that many are alike.
TAILS = st.lists(st.integers(0, 1), max_size=3).map(tuple)
STARTS = st.sampled_from([(), LONG[:-1], LONG, LONG + LONG])


@settings(deadline=None)
@given(st.data())
def test_requests_are_linked_as_the_twin_links_them(data) -> None:
    real, twin = Conversations(count_max=99, tokens_max=9999), Twin()
    made: list[Conversation] = []
    for _ in range(data.draw(st.integers(1, 12))):
        session = data.draw(st.sampled_from([None, None, None, "a"]))
        job = data.draw(st.sampled_from([0, 0, 0, 1]))
        ids = data.draw(STARTS) + data.draw(TAILS)
        there = [one for one in twin.talks if one is not None]
        if there and data.draw(st.booleans()):
            one = data.draw(st.sampled_from(there))
            ids = one["prompt"] + one["output"] + data.draw(TAILS)
        prompt = Prompt(ids)
        found = real.find(prompt, session=session, job=job)
        number = None if found is None else made.index(found)
        assert twin.equals(number, twin.find(ids, session, job))
        if found is None:
            number, found = len(made), real.open(len(made), prompt, session=session, job=job)
            made.append(found)
            twin.talks.append({"session": session, "job": job})
        real.begin(found, prompt)
        twin.talks[number] |= {"prompt": ids, "output": (), "busy": True}
        match data.draw(st.sampled_from(["rest", "rest", "busy", "close"])):
            case "rest":
                output = data.draw(TAILS)
                real.rest(found, output, now_s=0.0)
                twin.talks[number] |= {"output": output, "busy": False}
            case "close":
                assert real.close(found)
                twin.talks[number] = None
    for one in made:
        real.close(one)
    assert len(real) == real._tokens == 0
    assert not (real._idle or real._sessions or real._groups or real._places or real._lengths)


def test_samples_of_one_prompt_are_conversations_of_one_group() -> None:
    talks = Conversations(count_max=99, tokens_max=9999)
    groups = set()
    for number in range(3):
        prompt = Prompt(LONG)
        assert talks.find(prompt, session=None, job=0) is None
        one = talks.open(number, prompt)
        talks.begin(one, prompt)
        talks.rest(one, [number], now_s=0.0)
        groups.add(one.group)
    assert groups == {0}
    other = talks.open(3, Prompt((*LONG, 5)))
    assert other.group == 3
    # Each sample's next turn finds its own sample.
    for number in range(3):
        found = talks.find(Prompt((*LONG, number, 9)), session=None, job=0)
        assert found is not None
        assert found.number == number


def test_a_busy_conversation_is_not_joined_and_no_other_in_its_place() -> None:
    talks = Conversations(count_max=99, tokens_max=9999)
    ends = [7, 8]
    for number, last in enumerate(ends):
        one = talks.open(number, Prompt(LONG))
        talks.begin(one, Prompt(LONG))
        talks.rest(one, [last], now_s=0.0)
    mine = Prompt((*LONG, 7, 1))
    busy = talks.find(mine, session=None, job=0)
    assert busy is not None
    talks.begin(busy, mine)
    assert talks.find(Prompt((*LONG, 7, 1, 2)), session=None, job=0) is None


def test_the_oldest_idle_conversations_are_the_surplus() -> None:
    talks = Conversations(count_max=3, tokens_max=1000)
    for number in range(5):
        one = talks.open(number, Prompt((number,)))
        talks.begin(one, Prompt((number,)))
        if number != 1:
            talks.rest(one, [1, 2], now_s=float(number))
    surplus = talks.surplus(older_than_s=-1.0)
    assert [one.number for one in surplus] == [0, 2]
    assert [one.number for one in talks.surplus(older_than_s=3.0)] == [0, 2, 3]
    small = Conversations(count_max=99, tokens_max=10)
    for number in range(3):
        one = small.open(number, Prompt((1, 2, 3)))
        small.begin(one, Prompt((1, 2, 3)))
        small.rest(one, [4, 5], now_s=0.0)
    assert [one.number for one in small.surplus(older_than_s=-1.0)] == [0]


def test_ids_that_do_not_fit_are_refused() -> None:
    for ids in ((1, 1 << 32), (-1,)):
        with pytest.raises(InvalidArgument, match="must be from 0 to 4294967295"):
            Prompt(ids)
