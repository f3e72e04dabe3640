"""`rollout_func=` of GRPOTrainer, against trial workers: turns, seeds, versions, refusals."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

import rose
from rose.adapters import PauseMode
from rose.adapters.listening import listening
from rose.adapters.trl import TrlRollouts, TrlWeightTransfer, trl_weights
from rose.adapters.trl.episodes import Episode
from tests.adapters.rig import Rig, rigged, truth, until
from tests.adapters.test_weight_transfer import WAIT_S, Model, following

EOS = list(range(128))  # half of what trial workers say, so turns are short
LIMIT = 24


class Tokenizer:
    """Writes a token as a character, and a message as its role's letter, its text and a dot."""

    def __call__(self, text: str | list[str], **_: object) -> dict[str, list]:
        if isinstance(text, str):
            return {"input_ids": [ord(one) for one in text]}
        return {"input_ids": [[ord(one) for one in row] for row in text]}

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(
        self, *, conversation: list, add_generation_prompt: bool, chat_template: None, **_: object
    ) -> dict[str, list]:
        assert chat_template is None
        begin = "\u00f0" * add_generation_prompt
        rows = ["".join(f"\u00f1{m['content']}\u007f\u00f2" for m in row) for row in conversation]
        return self([row + begin for row in rows])


class Environment:
    """Repeats the last letter of each turn as often as its row says; it counts the turns."""

    def __init__(self, times: int) -> None:
        self.heard: list[str] = []
        self._times = times

    def __call__(self, turn: str) -> str | None:
        self.heard.append(turn)
        return None if len(self.heard) == 2 else turn[-1] * self._times


class Coroutine(Environment):
    async def __call__(self, turn: str) -> str | None:
        await asyncio.sleep(0)
        return super().__call__(turn)


def trainer(**changed: object) -> SimpleNamespace:
    options = {
        "accelerator": accelerator(),
        "model": Model(1.0),
        "state": SimpleNamespace(global_step=0),
        "args": SimpleNamespace(generation_kwargs=None),
        "processing_class": Tokenizer(),
        "chat_template": None,
        "chat_template_kwargs": {},
        "tools": [],
        "environments": None,
        "eos_token_ids": EOS,
        "max_completion_length": LIMIT,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
    }
    return SimpleNamespace(**{**options, **changed})


def accelerator(rank: int = 0, ranks: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        process_index=rank,
        num_processes=ranks,
        is_main_process=rank == 0,
        state=SimpleNamespace(),
        unwrap_model=lambda model: model,
    )


class Recording:
    """An application that keeps the headers and bodies of completions that it passes on.

    A request that is repeated while no worker has the weights is kept once.
    """

    def __init__(self, app) -> None:
        self._app = app
        self._by_key: dict[str, tuple[dict[str, str], dict]] = {}

    @property
    def asked(self) -> list[tuple[dict[str, str], dict]]:
        return list(self._by_key.values())

    async def __call__(self, scope, receive, send) -> None:
        parts: list[bytes] = []

        async def read() -> dict:
            message = await receive()
            parts.append(message.get("body", b""))
            is_whole = message["type"] == "http.request" and not message.get("more_body")
            if scope["path"] == "/v1/completions" and is_whole:
                headers = {key.decode(): value.decode() for key, value in scope["headers"]}
                body = json.loads(b"".join(parts))
                kept = self._by_key.setdefault(headers["idempotency-key"], (headers, body))
                assert kept[1] == body
            return message

        await self._app(scope, read, send)


@asynccontextmanager
async def recorded() -> AsyncIterator[tuple[Rig, Recording, rose.WeightPublisher, str]]:
    """A service that records requests, its worker, and the publisher that the worker follows."""
    async with rigged(1, step_s=0.001) as rig:
        app = Recording(rig.app)
        with (
            rose.publish(trl_weights(Model(0.0))) as publisher,
            following(rig.workers[0], publisher),
        ):
            async with listening(app) as url:
                yield rig, app, publisher, url


@pytest.mark.parametrize("kind", [Environment, Coroutine])
@pytest.mark.parametrize("is_chat", [False, True])
async def test_turns_of_the_model_and_of_its_environment_are_told_apart(kind, is_chat) -> None:
    async with recorded() as (rig, app, publisher, url):
        transfer = TrlWeightTransfer(url, publisher, wait_s=WAIT_S)
        environments = [kind(times) for times in (1, 2, 3)]
        prompts = ["ab", "ab", "c"]
        said = await asyncio.to_thread(
            TrlRollouts(transfer, seed=3),
            [[{"role": "user", "content": one}] for one in prompts] if is_chat else prompts,
            trainer(environments=environments, max_completion_length=60),
        )
        await rig.until_empty()
    texts = [f"\u00f1{one}\u007f\u00f2\u00f0" if is_chat else one for one in prompts]
    assert said["prompt_ids"] == [list(map(ord, text)) for text in texts]
    assert len({body["seed"] for _, body in app.asked}) == len(app.asked) == 6
    assert len({headers["idempotency-key"] for headers, _ in app.asked}) == 6
    by_session: dict[str, list[list[int]]] = {}
    for headers, body in app.asked:
        by_session.setdefault(headers["x-session-id"], []).append(body["prompt"])
    assert len(by_session) == 3
    for first, second in by_session.values():
        assert second[: len(first)] == first
    first_seeds = [body["seed"] for _, body in app.asked if body["prompt"] in said["prompt_ids"]]
    for times, (ids, mask, turns, environment) in enumerate(
        zip(said["completion_ids"], said["env_mask"], said["turns"], environments, strict=True), 1
    ):
        assert environment.heard == turns
        assert len(turns) == 2
        replied = "".join(chr(one) for one, model in zip(ids, mask, strict=True) if not model)
        text = turns[0][-1] * times
        # The model's own end of turn is a token that counts; the template's rest of it does not.
        assert replied == (f"\u00f2\u00f1{text}\u007f\u00f2\u00f0" if is_chat else text)
        assert "".join(chr(one) for one, model in zip(ids, mask, strict=True) if model) == (
            "".join(turns)
        )
        first = mask.index(0)
        drawn = [
            truth(seed, prompt=len(said["prompt_ids"][times - 1]), count=first, version=2)
            for seed in first_seeds
        ]
        assert ids[:first] in drawn
    assert list(map(len, said["logprobs"])) == list(map(len, said["completion_ids"]))
    assert said["staleness"] == [0, 0, 0]


@pytest.fixture
def broadcast(monkeypatch):
    """Let processes that take turns in a test hear what the main process says."""
    pytest.importorskip("torch")
    shared: list = []

    def broadcast_object_list(said: list, *, src: int) -> None:
        assert src == 0
        if said == [None]:
            said[:] = shared
        shared[:] = said

    monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast_object_list)


@pytest.mark.usefixtures("broadcast")
async def test_two_processes_publish_once_and_share_no_seed() -> None:
    async with recorded() as (_rig, app, publisher, url):
        said = []
        for rank in range(2):
            of = trainer(accelerator=accelerator(rank, 2))
            transfer = TrlWeightTransfer(url, None if rank else publisher, wait_s=WAIT_S)
            said.append(await asyncio.to_thread(TrlRollouts(transfer), ["ab", "ab", "ab"], of))
        assert publisher.version == 2
        for rank in range(2):  # an error of the main process ends the other too
            without = TrlRollouts(TrlWeightTransfer(url, None, wait_s=WAIT_S))
            of = trainer(accelerator=accelerator(rank, 2))
            with pytest.raises(rose.InvalidArgument, match="must have a publisher"):
                await asyncio.to_thread(without, ["ab"], of)
    assert len({body["seed"] for _, body in app.asked}) == 6
    assert len({headers["x-session-id"] for headers, _ in app.asked}) == 6
    assert {body["weight_version"]["min"] for _, body in app.asked} == {2}
    ids = [tuple(one) for rank in said for one in rank["completion_ids"]]
    assert len(set(ids)) == 6


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
            assert rig.service.published == 3
    assert versions == [(2, 1.0), (2, 1.0), (3, 3.0)]


async def test_old_weights_may_generate_as_far_as_max_staleness_goes() -> None:
    async with rigged(2, step_s=0.001) as rig:
        app = Recording(rig.app)
        with rose.publish(trl_weights(Model(0.0))) as publisher:
            async with listening(app) as url:
                transfer = TrlWeightTransfer(url, publisher, wait_s=WAIT_S)
                of = trainer()
                # No worker follows the publisher, so all have version 0.
                said = await asyncio.to_thread(
                    TrlRollouts(transfer, max_staleness=2), ["ab", "c"], of
                )
                assert said["staleness"] == [2, 2]
                with following(rig.workers[0], publisher):  # the other worker is starved
                    said = await asyncio.to_thread(TrlRollouts(transfer), ["ab"] * 8, of)
                    assert said["staleness"] == [0] * 8
    assert [body["weight_version"]["min"] for _, body in app.asked] == [0, 0, *[3] * 8]
    with pytest.raises(rose.InvalidArgument, match="max_staleness must be at least 0, got -1"):
        TrlRollouts(transfer, max_staleness=-1)


def test_version_0_is_the_oldest_and_not_the_newest() -> None:
    assert Episode(0, [1], oldest=0).staleness(2) == 2
    assert Episode(0, [1], oldest=None).staleness(2) == 0


async def test_a_turn_that_another_client_aborts_goes_on() -> None:
    async with rigged(1, step_s=0.01) as rig, listening(rig.app) as url:
        with (
            rose.publish(trl_weights(Model(0.0))) as publisher,
            following(rig.workers[0], publisher),
        ):
            transfer = TrlWeightTransfer(url, publisher, wait_s=WAIT_S)
            of = trainer(eos_token_ids=[300])  # no token that a trial worker says
            call = asyncio.create_task(asyncio.to_thread(TrlRollouts(transfer), ["ab"], of))
            await until(lambda: len(rig.workers[0]._turns))
            await rig.service.pause(PauseMode.ABORT)
            await rig.service.resume()
            said = await call
            whole = await asyncio.to_thread(TrlRollouts(transfer), ["ab"], of)
    assert len(said["completion_ids"][0]) == len(said["logprobs"][0]) == LIMIT
    assert said["turns"][0] == ["".join(map(chr, said["completion_ids"][0]))]
    assert len(whole["completion_ids"][0]) == LIMIT


async def test_options_of_sampling_are_passed_on_and_refused_by_the_workers() -> None:
    given = {"top_p": 0.5, "top_k": 9, "min_p": 0.1, "repetition_penalty": 1.1, "temperature": 0.7}
    async with recorded() as (_rig, app, publisher, url):
        rollouts = TrlRollouts(TrlWeightTransfer(url, publisher, wait_s=WAIT_S))
        args = SimpleNamespace(generation_kwargs={"stop": ["x"], "logit_bias": {"1": 100}})
        with pytest.raises(rose.InvalidArgument, match="status 400: "):
            await asyncio.to_thread(rollouts, ["ab"], trainer(args=args, **given))
    ((_, body),) = app.asked
    assert {name: body[name] for name in given} == given
    assert body["stop"] == ["x"]
    assert body["logit_bias"] == {"1": 100}


async def test_a_trainer_that_is_not_supported_is_refused_in_a_sentence() -> None:
    def parallel(**plugin: object) -> SimpleNamespace:
        of = trainer()
        of.accelerator.state = SimpleNamespace(**plugin)
        return of

    async with rigged(1) as rig, listening(rig.app) as url:
        with rose.publish(trl_weights(Model(0.0))) as publisher:
            transfer = TrlWeightTransfer(url, publisher, wait_s=WAIT_S)
            picture = [{"role": "user", "content": [{"type": "image", "image": None}]}]
            for prompt, of, match in (
                (picture, trainer(), "images are not sent"),
                ("ab", trainer(tools=[print]), r"call attach\(trainer\)"),
                ("ab", parallel(deepspeed_plugin=SimpleNamespace(zero_stage=3)), "use FSDP2"),
                ("ab", parallel(fsdp_plugin=SimpleNamespace(fsdp_version=1)), "set fsdp_version"),
            ):
                with pytest.raises(rose.InvalidArgument, match=match):
                    await asyncio.to_thread(TrlRollouts(transfer), [prompt], of)


async def test_a_template_that_rewrites_earlier_messages_is_refused() -> None:
    class Rewriting(Tokenizer):
        def apply_chat_template(self, *, conversation, **options) -> dict[str, list]:
            told = [[{"content": len(row)}, *row] for row in conversation]
            return super().apply_chat_template(conversation=told, **options)

    async with rigged(1, step_s=0.001) as rig, listening(rig.app) as url:
        with (
            rose.publish(trl_weights(Model(0.0))) as publisher,
            following(rig.workers[0], publisher),
        ):
            rollouts = TrlRollouts(TrlWeightTransfer(url, publisher, wait_s=WAIT_S))
            of = trainer(processing_class=Rewriting(), environments=[Environment(1)])
            with pytest.raises(rose.InvalidArgument, match="leave earlier messages as they are"):
                await asyncio.to_thread(rollouts, [[{"role": "user", "content": "ab"}]], of)


async def test_a_service_without_workers_is_asked_until_its_time_is_over() -> None:
    async with rigged(0) as rig, listening(rig.app) as url:
        with rose.publish(trl_weights(Model(0.0))) as publisher:
            rollouts = TrlRollouts(TrlWeightTransfer(url, publisher, wait_s=0.3))
            with pytest.raises(rose.Unavailable, match=r"within 0\.3 s; .*rose workers"):
                await asyncio.to_thread(rollouts, ["ab"], trainer())
