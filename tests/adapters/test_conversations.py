"""Which requests are turns of one conversation, and when conversations end."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.adapters import Ask, ServiceLimits, VersionRange
from rose.adapters.conversations import BLOCK_TOKENS, Conversation, Conversations, Prompt
from rose.adapters.trial import trial_token
from rose.errors import InvalidArgument, RoseError
from rose.scheduler.settings import SchedulerSettings
from rose.scheduler.turns import Sampling
from tests.adapters.rig import Rig, bare, until

ANY = VersionRange()
LONG = tuple(range(BLOCK_TOKENS))


@dataclass
class Twin:
    """The rules, in words of their own: every conversation is compared token by token."""

    talks: list[dict] = field(default_factory=list)

    def rank(self, number, prompt, session, job) -> tuple | None:
        """Return how well a conversation fits; None if the request may not continue it."""
        talk = self.talks[number]
        if talk is None or talk["job"] != job or talk["session"] != session:
            return None
        last = talk["prompt"]
        if session is None and (
            len(last) < BLOCK_TOKENS or len(prompt) <= len(last) or prompt[: len(last)] != last
        ):
            return None
        whole = last + talk["output"]
        pairs = zip(whole, prompt, strict=False)
        same = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
        same = min(len(whole), len(prompt)) if same is None else same
        return (0, not talk["busy"], same) if session else (same, not talk["busy"])

    def best(self, prompt, session, job) -> tuple | None:
        """Return the best rank, if the conversation with it is idle."""
        ranks = [self.rank(one, prompt, session, job) for one in range(len(self.talks))]
        best = max((one for one in ranks if one is not None), default=None)
        return best if best is not None and best[1] else None


# Prompts that share long beginnings, and outputs of few tokens, so that many are alike.
TAILS = st.lists(st.integers(0, 1), max_size=3).map(tuple)
STARTS = st.sampled_from([(), LONG[:-1], LONG, LONG + LONG])


@settings(deadline=None, max_examples=300)
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
        best = twin.best(ids, session, job)
        assert (None if number is None else twin.rank(number, ids, session, job)) == best
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
    left = real._idle, real._sessions, real._groups, real._places, real._lengths
    assert not any(left)


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


def test_an_idle_conversation_is_continued_before_a_busy_equal_one() -> None:
    talks = Conversations(count_max=99, tokens_max=9999)
    for number in range(3):
        one = talks.open(number, Prompt(LONG))
        talks.begin(one, Prompt(LONG))
        if number != 2:
            talks.rest(one, [], now_s=0.0)
    found = talks.find(Prompt((*LONG, 7)), session=None, job=0)
    assert found is not None
    assert found.number in {0, 1}


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


# ---- in the service -----------------------------------------------------------------------------


def ask(prompt, count: int = 4) -> Ask:
    return Ask(tuple(prompt), Sampling(count), 5, ANY)


async def said(rig: Rig, prompt, count: int = 4, **options):
    """Return the only sequence of a request."""

    async def run():
        async with rig.service.generate([ask(prompt, count)], **options) as generation:
            return await generation.finished()

    (one,) = await rig.play(asyncio.create_task(run()))
    start = len(prompt)
    assert one.tokens == [trial_token(5, start + place, 0) for place in range(count)]
    return one


def turns(rig: Rig) -> list[int]:
    """Return the number of finished turns of each trajectory."""
    return sorted(len(one.turns) for one in rig.service.scheduler.trajectories())


async def test_a_longer_prompt_is_the_next_turn_where_its_cache_is() -> None:
    async with bare(4) as rig:
        context = list(LONG)
        for turn in range(4):
            others = [said(rig, [9 + turn] * 70) for _ in range(4)]  # other work moves no turn
            one, *_ = await asyncio.gather(said(rig, context), *others)
            assert one.cached_tokens == (len(context) - 3 if turn else 0)
            context += [*one.tokens, 1, 2, 3]
        assert max(turns(rig)) == 4
        await rig.until_empty()


async def test_turns_do_not_wait_for_room_that_only_idle_conversations_use(monkeypatch) -> None:
    monkeypatch.setattr("rose.adapters.trial.KV_TOKENS", 1024)
    async with bare(1) as rig:
        for number in range(6):  # the contexts of five fill the worker
            await said(rig, [number] * 200)
        assert len(turns(rig)) == 6
        await rig.until_empty()


async def test_a_prompt_that_was_changed_in_the_middle_is_still_the_next_turn() -> None:
    async with bare(1) as rig:
        await said(rig, LONG)
        # The text of the output was tokenised differently, and its first token is another one.
        one = await said(rig, [*LONG, 255, 255, 1, 2])
        assert one.cached_tokens == len(LONG)
        assert turns(rig) == [2]


async def test_a_name_links_what_the_tokens_do_not() -> None:
    async with bare(1) as rig:
        for prompt in ([1, 2], [1, 3], [7]):
            await said(rig, prompt, session="episode 1")
            await said(rig, prompt, session="episode 2")
            await said(rig, prompt, session="episode 1", job=0)
        assert turns(rig) == [3, 6]
        await rig.until_empty()


async def test_equal_prompts_and_several_sequences_are_trajectories_of_one_group() -> None:
    async with bare(1) as rig:
        await said(rig, LONG)

        async def several():
            async with rig.service.generate([ask(LONG)] * 3) as generation:
                await generation.finished()

        await rig.play(asyncio.create_task(several()))
        there = rig.service.scheduler.trajectories()
        assert [len(one.turns) for one in there] == [1] * 4
        assert len({one.group for one in there}) == 1


async def test_a_request_during_a_turn_begins_a_conversation_of_its_own() -> None:
    async with bare(1) as rig:
        one = await said(rig, LONG)
        longer = (*LONG, *one.tokens, 8)
        first, second = await asyncio.gather(said(rig, longer), said(rig, (*longer, 8)))
        assert (first.cached_tokens, second.cached_tokens) == (len(LONG) + 4, 0)
        assert turns(rig) == [1, 2]


async def test_a_client_that_leaves_in_a_turn_ends_the_conversation() -> None:
    async with bare(1) as rig:
        one = await said(rig, LONG)
        async with rig.service.generate([ask((*LONG, *one.tokens, 8), 500)]):
            await until(lambda: rig.workers[0]._turns)
            assert rig.service.conversation_count() == 1
        await until(lambda: not rig.service.scheduler.trajectories())
        assert rig.service.conversation_count() == 0
        await rig.until_empty()


async def test_a_failed_turn_ends_the_conversation() -> None:
    async with bare(1) as rig:
        one = await said(rig, LONG)
        worker = rig.workers[0]

        def start_turn(_) -> None:
            raise InvalidArgument("it cannot run this")

        worker.start_turn = start_turn
        longer = (*LONG, *one.tokens, 8)
        with pytest.raises(RoseError, match="it cannot run this"):
            await said(rig, longer)
        del worker.start_turn
        await said(rig, longer)
        assert turns(rig) == [1]
        await rig.until_empty()


async def test_conversations_end_when_idle_for_too_long() -> None:
    async with bare(1, ServiceLimits(conversation_s=0.05)) as rig:
        await said(rig, LONG)
        assert rig.service.conversation_count() == 1
        await until(lambda: not rig.service.scheduler.trajectories())
        counts = rig.service.scheduler.counts()
        assert (counts.finished, counts.jobs[0].consumed) == (1, 1)


async def test_the_oldest_conversations_end_when_they_are_too_many() -> None:
    async with bare(1, ServiceLimits(conversations=2)) as rig:
        for first in range(4):
            await said(rig, [first] * 70)
        await until(lambda: rig.service.conversation_count() == 2)
        await said(rig, [3] * 74)
        assert turns(rig) == [1, 2]


async def test_an_idle_conversation_ends_when_staleness_admission_holds_a_new_one() -> None:
    settings = SchedulerSettings(max_staleness=0, batch_trajectories=2)
    async with bare(1, settings=settings) as rig:
        for first in range(4):
            await said(rig, [first] * 70)
        assert rig.service.conversation_count() == 2
        await said(rig, [3] * 74)
        assert turns(rig) == [1, 2]  # The oldest ones have ended.
        await rig.until_empty()


async def test_a_closed_service_has_finished_its_conversations() -> None:
    async with bare(1) as rig:
        await said(rig, LONG)
        scheduler = rig.service.scheduler
    assert not scheduler.trajectories()
    assert scheduler.counts().finished == 1
