"""Requests: limits that are checked at once, keys of retries, stop texts, absent workers."""

import asyncio

import pytest

from rose.adapters import (
    Ask,
    ContextTooLong,
    FleetLimits,
    KeyReused,
    ServiceLimits,
    TrialWorker,
    VersionRange,
)
from rose.adapters.trial import trial_token
from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.turns import Sampling
from rose.scheduler.worker import Options, WorkerKind
from tests.adapters.rig import bare, until
from tests.adapters.test_service import ANY, ask, finishing, holder, said


class Letters:
    """A tokenizer whose tokens are single characters; the last one ends a text and is special."""

    eos_token_id = 255

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids, *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(one) for one in ids if one != 255 or not skip_special_tokens)

    def apply_chat_template(self, conversation, **options) -> list[int]:
        return self.encode(str(conversation))


def text_of(tokens) -> str:
    return Letters().decode(tokens)


def stopping(stop: str, count: int = 30, *, include: bool = False, least: int = 0) -> Ask:
    sampling = Sampling(count, options=Options(min_tokens=least, ignore_eos=True))
    return Ask((1, 2, 3), sampling, 5, ANY, (stop,), include_stop=include)


# ---- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "error", "rule"),
    [
        (ask(prompt=(5, 256)), InvalidArgument, "vocabulary of 256, got 256 at index 1"),
        (ask(prompt=(5,) * 99, count=2), ContextTooLong, "length is 100 tokens, but the prompt"),
        (ask(prompt=(5,) * 101), ContextTooLong, "reduce the length of the messages"),
        (stopping(""), InvalidArgument, "stop texts must have at least 1 character"),
        *(
            (Ask((1,), Sampling(1, options=options), 0, ANY), InvalidArgument, rule)
            for options, rule in (
                (Options(top_p=0.5), "top_p needs workers with top_p; features of all workers: "),
                (Options(top_k=2), "top_k needs"),
                (Options(min_p=0.1), "min_p needs"),
                (Options(fields={"logit_bias": {"1": 2}}), "logit_bias needs"),
                (Options(fields={"presence_penalty": 1}), "presence_penalty needs workers with pe"),
                (Options(fields={"structured_outputs": {}}), "structured_outputs needs"),
                (Options(fields={"tools": []}), "tools needs workers with structured_outputs"),
            )
        ),
    ],
)
async def test_requests_beyond_the_limits_of_workers_are_refused_at_once(one, error, rule) -> None:
    async with bare(2, tokenizer=Letters()) as rig:
        real = FleetLimits(256, 100, (), frozenset({"min_tokens"}), None)
        rig.service.facts = lambda: real
        with pytest.raises(error, match=rule):
            rig.service.generate([one])
        assert rig.service.conversation_count() == 0
        (other,) = await rig.play(finishing(rig, [ask()]))
        assert other.tokens == said()


async def test_a_stop_text_needs_a_tokenizer() -> None:
    async with bare(1) as rig:
        with pytest.raises(InvalidArgument, match="stop needs a tokenizer"):
            rig.service.generate([stopping("x")])


async def test_the_limits_of_registered_workers_hold() -> None:
    async with bare(0, ServiceLimits(context_tokens=4000)) as rig:
        assert rig.service.room(1000) == 3000
        small = TrialWorker(0, WorkerKind.DEDICATED, rig.service.receive, step_s=0)
        limits = FleetLimits(256, 500, (9,), frozenset({"min_tokens", "top_p"}), "m")
        await rig.service.register(small, small.capabilities, limits)
        assert rig.service.facts() == limits
        assert rig.service.room(100) == 400
        with pytest.raises(ContextTooLong, match="length is 500 tokens"):
            rig.service.room(500)
        large = TrialWorker(1, WorkerKind.DEDICATED, rig.service.receive, step_s=0)
        await rig.service.register(large, large.capabilities)
        # A worker that did not tell its limits can do what its grant holds, and has no features.
        assert rig.service.facts() == FleetLimits(256, 0, (9,), frozenset(), "m")
        large.grant()
        await until(lambda: rig.service.facts().context_tokens == 1 << 20)
        await rig.service.scheduler.lose(1, "a test says so")
        assert rig.service.facts() == limits


async def test_without_a_worker_a_request_fails_within_seconds() -> None:
    async with bare(0, ServiceLimits(worker_wait_s=0.05)) as rig:
        with pytest.raises(
            Unavailable, match=r"no worker is registered, and none came within 0.05"
        ):
            await finishing(rig, [ask()])
        await rig.until_empty()
        answer = finishing(rig, [ask()])
        await asyncio.sleep(0.01)
        worker = TrialWorker(0, WorkerKind.DEDICATED, rig.service.receive, step_s=0)
        rig.workers.append(worker)
        await rig.service.register(worker, worker.capabilities)
        await asyncio.sleep(0.1)
        worker.grant()
        assert (await rig.play(answer))[0].tokens == said()


async def test_a_request_whose_last_worker_is_lost_fails_within_seconds() -> None:
    async with bare(1, ServiceLimits(worker_wait_s=0.05)) as rig:
        answer = finishing(rig, [ask(500)])
        await until(lambda: holder(rig))
        await rig.service.scheduler.lose(0, "a test says so")
        with pytest.raises(Unavailable, match="no worker is registered"):
            await answer


# ---- ends ---------------------------------------------------------------------------------------


async def test_the_ends_of_the_fleet_end_a_sequence_unless_it_ignores_them() -> None:
    tokens = said(8)
    async with bare(1, eos_token_ids=(tokens[4],)) as rig:
        (one,) = await rig.play(finishing(rig, [ask()]))
        assert (one.tokens, one.finish_reason, one.stop_reason) == (tokens[:5], "stop", None)
        (own,) = await rig.play(finishing(rig, [ask(stop=(tokens[2],))]))
        assert (own.tokens, own.stop_reason) == (tokens[:3], tokens[2])
        sampling = Sampling(8, options=Options(ignore_eos=True))
        (free,) = await rig.play(finishing(rig, [Ask((1, 2, 3), sampling, 5, ANY)]))
        assert (free.tokens, free.finish_reason) == (tokens, "length")
        rig.service.eos_token_ids = ()
        limits = rig.service.facts()
        rig.service.facts = lambda: FleetLimits(
            256, 1000, (tokens[3], 100_000), limits.features, None
        )
        (one,) = await rig.play(finishing(rig, [ask()]))
        assert (one.tokens, one.finish_reason) == (tokens[:4], "stop")


async def test_no_stop_token_ends_a_sequence_before_its_least_tokens() -> None:
    tokens = said(8)
    async with bare(1) as rig:
        sampling = Sampling(8, stop_tokens=(tokens[2],), options=Options(min_tokens=5))
        (one,) = await rig.play(finishing(rig, [Ask((1, 2, 3), sampling, 5, ANY)]))
        assert len(one.tokens) == 8
        assert tokens[2] not in one.tokens


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_text_cuts_tokens_and_logprobs_alike(include) -> None:
    stop = text_of(said(8)[5:7])
    async with bare(2, tokenizer=Letters()) as rig:
        (one,) = await rig.play(finishing(rig, [stopping(stop, include=include)]))
        assert (one.tokens, one.finish_reason, one.stop_reason) == (said(7), "stop", stop)
        assert len(one.logprobs) == len(one.versions) == 7
        assert "".join(one.pieces) == text_of(said(7 if include else 5))
        await until(lambda: holder(rig) is None)  # The worker was told to stop.
        await rig.until_empty()


async def test_a_stop_text_is_found_across_a_resumption() -> None:
    stop = text_of(said(8)[5:7])
    async with bare(2, tokenizer=Letters()) as rig:
        answer = finishing(rig, [stopping(stop)])
        await until(lambda: holder(rig))
        for _ in range(6):
            rig.step()
        await asyncio.sleep(0.01)
        holder(rig).revoke()
        (one,) = await rig.play(answer)
        assert (one.tokens, one.stop_reason) == (said(7), stop)


async def test_a_stop_text_counts_only_after_the_least_tokens() -> None:
    stop = text_of(said(8)[1:2])
    async with bare(1, tokenizer=Letters()) as rig:
        (one,) = await rig.play(finishing(rig, [stopping(stop, 8, least=3)]))
        assert (one.tokens, one.finish_reason) == (said(8), "length")


async def test_the_next_turn_follows_a_cut_turn_at_once() -> None:
    prompt = tuple(range(80))
    tokens = [trial_token(5, 80 + place, 0) for place in range(6)]
    stop = text_of(tokens[3:5])
    async with bare(2, tokenizer=Letters()) as rig:
        sampling = Sampling(400, options=Options(ignore_eos=True))
        (one,) = await rig.play(finishing(rig, [Ask(prompt, sampling, 5, ANY, (stop,))]))
        assert one.tokens == tokens[:5]
        longer = (*prompt, *one.tokens, 9)
        stop = text_of([trial_token(5, 87, 0)])
        (two,) = await rig.play(finishing(rig, [Ask(longer, sampling, 5, ANY, (stop,))]))
        assert (two.stop_reason, two.cached_tokens) == (stop, 85)
        assert rig.service.conversation_count() == 1
        await rig.until_empty()


async def test_the_text_of_a_stop_token_is_left_out_unless_it_is_wanted() -> None:
    tokens = said(8)
    async with bare(1, tokenizer=Letters()) as rig:
        for include in (False, True):
            sampling = Sampling(8, stop_tokens=(tokens[3],))
            one = Ask((1, 2, 3), sampling, 5, ANY, include_stop=include)
            (said_,) = await rig.play(finishing(rig, [one]))
            assert said_.tokens == tokens[:4]
            assert "".join(said_.pieces) == text_of(tokens[: 4 if include else 3])


# ---- keys ---------------------------------------------------------------------------------------


async def test_a_repeated_request_gets_the_running_and_the_finished_answer() -> None:
    async with bare(1) as rig:
        drawn = Ask((1, 2, 3), Sampling(8), None, ANY)  # The service draws its seed once.
        first = rig.service.generate([drawn], request="key")
        await until(lambda: holder(rig))
        second = rig.service.generate([drawn], request="key")
        assert rig.service.sequence_count() == 1
        (one,), (two,) = await rig.play(asyncio.gather(first.finished(), second.finished()))
        assert one.tokens == two.tokens
        for generation in (first, second):
            generation.close()
        async with rig.service.generate([drawn], request="key") as third:
            assert (await third.finished())[0].tokens == one.tokens
        async with rig.service.generate([drawn], request="other") as other:
            assert (await rig.play(asyncio.ensure_future(other.finished())))[0] is not one
        await rig.until_empty()


async def test_a_key_is_of_one_request() -> None:
    async with bare(1) as rig:
        await rig.play(finishing(rig, [ask()], request="key"))
        for other in (ask(9), ask(prompt=(1, 2)), ask(versions=VersionRange(at_least=0))):
            with pytest.raises(KeyReused, match="'key' was used for another request"):
                rig.service.generate([other], request="key")


async def test_a_client_may_come_back_to_its_request() -> None:
    async with bare(1, ServiceLimits(grace_s=0.2)) as rig:
        async with rig.service.generate([ask(50)], request="key"):
            await until(lambda: holder(rig))
        for _ in range(20):
            rig.step()
            await asyncio.sleep(0.001)
        (one,) = await rig.play(finishing(rig, [ask(50)], request="key"))
        assert one.tokens == said(50)
        async with rig.service.generate([ask(500)], request="gone"):
            await until(lambda: holder(rig))
        await until(lambda: holder(rig) is None)
        assert rig.service.sequence_count() == 0
        await rig.until_empty()


async def test_a_failed_request_may_be_sent_again() -> None:
    async with bare(1) as rig:
        worker = rig.workers[0]

        def start_turn(_) -> None:
            raise InvalidArgument("it cannot run this")

        worker.start_turn = start_turn
        with pytest.raises(Exception, match="it cannot run this"):
            await finishing(rig, [ask()], request="key")
        del worker.start_turn
        (one,) = await rig.play(finishing(rig, [ask()], request="key"))
        assert one.tokens == said()


async def test_an_aborted_request_may_be_sent_again() -> None:
    async with bare(1) as rig:
        async with rig.service.generate([ask(9)], request="key") as generation:
            await until(lambda: holder(rig))
            generation.sequences[0].abort()
            assert (await generation.finished())[0].finish_reason == "abort"
        (one,) = await rig.play(finishing(rig, [ask(9)], request="key"))
        assert one.tokens == said(9)


async def test_answers_are_kept_for_a_time() -> None:
    async with bare(1, ServiceLimits(answer_s=0.02)) as rig:
        (one,) = await rig.play(finishing(rig, [ask()], request="key"))
        await until(lambda: not rig.service._keyed._by_key)
        (two,) = await rig.play(finishing(rig, [ask()], request="key"))
        assert two is not one


async def test_the_oldest_answers_are_forgotten_when_they_are_too_many() -> None:
    async with bare(1, ServiceLimits(answer_tokens=25)) as rig:
        ones = [
            (await rig.play(finishing(rig, [ask()], request=f"key {place}")))[0]
            for place in range(4)
        ]
        for place in (3, 2, 0):
            (one,) = await rig.play(finishing(rig, [ask()], request=f"key {place}"))
            assert (one is ones[place]) == (place >= 2)


async def test_an_aborted_sequence_has_its_tokens_and_harms_no_other() -> None:
    async with bare(1) as rig:
        async with rig.service.generate([ask(500), ask(20)]) as generation:
            await until(lambda: len(rig.workers[0]._turns) == 2)
            rig.step()
            await asyncio.sleep(0.01)
            one, other = generation.sequences
            one.abort()
            one.abort()
            assert (one.tokens, one.finish_reason) == (said(1), "abort")
            await rig.play(asyncio.ensure_future(generation.finished()))
        assert (other.tokens, other.finish_reason) == (said(20), "length")
        await rig.until_empty()
