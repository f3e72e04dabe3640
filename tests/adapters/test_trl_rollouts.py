"""`rollout_func=` of GRPOTrainer, against trial workers: turns, seeds, versions, refusals."""

import asyncio
from types import SimpleNamespace

import pytest

import rose
from rose.adapters.listening import listening
from rose.adapters.trl import TrlRollouts, TrlWeightTransfer, trl_weights
from tests.adapters.rig import rigged, truth
from tests.adapters.test_weight_transfer import WAIT_S, Model, following

REPLY = [7, 8, 9]
EOS = list(range(128))  # half of what trial workers say, so turns are short
LIMIT = 24


class Tokenizer:
    """Writes a token as a character."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(one) for one in text]}

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(map(chr, ids))


def trainer(**changed: object) -> SimpleNamespace:
    options = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None}
    return SimpleNamespace(
        **{**options, "repetition_penalty": 1.0, **changed},
        model=Model(1.0),
        state=SimpleNamespace(global_step=0),
        processing_class=Tokenizer(),
        eos_token_ids=EOS,
        max_completion_length=LIMIT,
    )


def two_turns(prompt: str, turns: list[str]) -> str | None:
    assert prompt in {"ab", "c"}
    return "".join(map(chr, REPLY)) if len(turns) < 2 else None


async def test_turns_of_the_model_and_replies_of_the_tool_are_told_apart() -> None:
    async with rigged(1, step_s=0.001) as rig, listening(rig.app) as url:
        with (
            rose.publish(trl_weights(Model(0.0))) as publisher,
            following(rig.workers[0], publisher),
        ):
            transfer = TrlWeightTransfer(url, publisher, commit_s=WAIT_S)
            of, prompts = trainer(), ["ab", "ab", "c"]
            playing = TrlRollouts(transfer, tool=two_turns, seed=3)
            said = await asyncio.to_thread(playing, prompts, of)
            alone = await asyncio.to_thread(TrlRollouts(transfer, seed=3), prompts, of)
            await rig.until_empty()
    assert said["prompt_ids"] == [[97, 98], [97, 98], [99]]
    for number, ids in enumerate(said["completion_ids"]):
        first = said["env_mask"][number].index(0)
        seed, read = hash((3, number, 0)), len(prompts[number])
        assert ids[:first] == truth(seed, prompt=read, count=first, version=2)
    rows = zip(*(said[name] for name in ("completion_ids", "env_mask", "turns")), strict=True)
    for ids, mask, turns in rows:
        spoken = [one for one, is_model in zip(ids, mask, strict=True) if is_model]
        assert "".join(turns) == "".join(map(chr, spoken))
        replies = [one for one, is_model in zip(ids, mask, strict=True) if not is_model]
        assert replies == (REPLY if len(turns) == 2 else [])
        assert len(ids) <= LIMIT
    assert {len(turns) for turns in said["turns"]} == {2}
    assert list(map(len, said["logprobs"])) == list(map(len, said["completion_ids"]))
    assert said["staleness"] == [0, 0, 0]
    assert all(set(mask) == {1} for mask in alone["env_mask"])


async def test_weights_are_published_when_the_step_has_moved() -> None:
    async with rigged(1, step_s=0.001) as rig, listening(rig.app) as url:
        with (
            rose.publish(trl_weights(Model(0.0))) as publisher,
            following(rig.workers[0], publisher) as held,
        ):
            rollouts, of = TrlRollouts(TrlWeightTransfer(url, publisher)), trainer()
            versions = []
            for step, value in ((0, 1.0), (0, 2.0), (1, 3.0)):
                of.state.global_step, of.model.value = step, value
                await asyncio.to_thread(rollouts, ["ab"], of)
                versions.append((publisher.version, float(held["w"][0])))
            assert not rig.service.is_paused
    assert versions == [(2, 1.0), (2, 1.0), (3, 3.0)]


async def test_a_sampling_that_workers_do_not_have_is_refused() -> None:
    async with rigged(1, step_s=0.001) as rig, listening(rig.app) as url:
        with (
            rose.publish(trl_weights(Model(0.0))) as publisher,
            following(rig.workers[0], publisher),
        ):
            rollouts = TrlRollouts(TrlWeightTransfer(url, publisher, commit_s=WAIT_S))
            with pytest.raises(rose.InvalidArgument, match="top_p"):
                await asyncio.to_thread(rollouts, ["ab"], trainer(top_p=0.5))
            talk = [{"role": "user", "content": "ab"}]
            with pytest.raises(rose.InvalidArgument, match="must be a string"):
                await asyncio.to_thread(rollouts, [talk], trainer())


async def test_a_service_without_workers_is_asked_until_its_time_is_over() -> None:
    async with rigged(0) as rig, listening(rig.app) as url:
        with rose.publish(trl_weights(Model(0.0))) as publisher:
            rollouts = TrlRollouts(TrlWeightTransfer(url, publisher, commit_s=0.3))
            with pytest.raises(rose.Unavailable, match="versions of workers: none"):
                await asyncio.to_thread(rollouts, ["ab"], trainer())
