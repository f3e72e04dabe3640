"""Completions for GRPOTrainer from the workers of a rollout service."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from inspect import isawaitable
from typing import Any, Final

from rose.adapters.trl.client import RolloutSession, run
from rose.adapters.trl.episodes import Episode, Templates
from rose.adapters.trl.transfer import TrlWeightTransfer, held_versions, no_worker
from rose.adapters.trl.weights import check_sharding, gathered, is_sharded
from rose.errors import InvalidArgument, RoseError

_SEED_BYTES: Final = 5  # the seed of a sequence has 40 bits
_WATCH_S: Final = 10.0


class TrlRollouts:
    """Generates completions on the workers of a rollout service: `GRPOTrainer(rollout_func=...)`.

    After each step of the trainer, its new weights are published before the next completions, and
    only workers with recent weights generate. In a trainer of several processes the main process
    publishes, and all of them generate. Reward functions also get `turns`, the texts of the model's
    turns, and `staleness`, the number of versions by which the oldest token is behind the newest
    weights.

    If the trainer has an `environment_factory`, each completion is a conversation with its own
    environment, which TRL resets with the columns of the row. After a turn that the model has ended
    the environment is called with the turn's text. It returns the text that follows, or None at the
    end of the completion; it may be a coroutine, otherwise a thread calls it. In a chat the text is
    a message of the user.

    A trainer whose model calls tools takes no `rollout_func`: call `attach` with it.

    Args:
        transfer: object that publishes the trainer's weights to the workers.
        max_staleness: largest number of versions by which a token's weights may be behind. With 0
            a completion has tokens of the newest weights only.
        seed: seed of the sampling; equal seeds and weights give equal completions.
    """

    def __init__(
        self, transfer: TrlWeightTransfer, *, max_staleness: int = 0, seed: int = 0
    ) -> None:
        if max_staleness < 0:
            raise InvalidArgument(f"max_staleness must be at least 0, got {max_staleness}")
        self._transfer = transfer
        self._max_staleness = max_staleness
        self._seed = seed
        self._run = secrets.token_hex(8)
        self._step: int | None = None
        self._version = 0
        self._episodes = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return one completion for each prompt, as TRL expects them.

        Raises:
            InvalidArgument: the trainer has tools, or shards its model in a way that is not
                supported, or workers do not support its sampling options.
            Unavailable: the service or its workers do not answer in time.
        """
        if trainer.tools:
            raise InvalidArgument(
                "a rollout_func cannot run tools: leave it out, and call attach(trainer)"
            )
        self.publish(trainer)
        episodes = self._new(Templates(trainer).prompts(prompts), trainer)
        for one in episodes:
            one.conversation = f"{self._run}/{one.number}"
        environments = trainer.environments or [None] * len(prompts)
        is_chat = not isinstance(prompts[0], str)
        self._play(
            [
                partial(self._converse, one, trainer, environment, is_chat=is_chat)
                for one, environment in zip(episodes, environments, strict=True)
            ]
        )
        return {
            "prompt_ids": [one.prompt_ids for one in episodes],
            "completion_ids": [one.ids for one in episodes],
            "logprobs": [one.logprobs for one in episodes],
            "env_mask": [one.mask for one in episodes],
            "turns": [one.turns for one in episodes],
            "staleness": [one.staleness(self._version) for one in episodes],
        }

    def attach(self, trainer: Any) -> None:
        """Generate all turns of a GRPOTrainer without `rollout_func`, in the place of vLLM.

        TRL itself then templates the prompts and runs `tools=` and `environment_factory=`. It also
        corrects for tokens of older weights, if `vllm_importance_sampling_correction` is set.

        Raises:
            InvalidArgument: the trainer has a `rollout_func`, or uses vLLM, or it is of a version
                of TRL that is not supported.
        """
        if trainer.rollout_func is not None or trainer.use_vllm:
            raise InvalidArgument("the trainer must have no rollout_func, and use_vllm=False")
        if not hasattr(trainer, "vllm_mode"):
            raise InvalidArgument("attach supports GRPOTrainer of TRL 1.16")
        trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "server", -1
        trainer.vllm_generation = _Generation(self, trainer)

    def publish(self, trainer: Any) -> None:
        """Publish the weights if the trainer has made a step. All its processes call together.

        Raises:
            InvalidArgument: the main process has no publisher, or the model is sharded in a way
                that is not supported.
            Unavailable: the service does not answer in time.
        """
        if trainer.state.global_step == self._step:
            return
        accelerator = trainer.accelerator
        check_sharding(accelerator)
        model, is_main = accelerator.unwrap_model(trainer.model), accelerator.is_main_process
        said: list[Any] = [None]
        weights = gathered(model, is_kept=is_main) if is_main or is_sharded(model) else {}
        if is_main:
            try:
                said = [self._transfer.publish(weights)]
            except RoseError as error:  # the other processes wait for it too
                said = [error]
        if accelerator.num_processes > 1:
            # Imported here: rose works without torch.
            from torch.distributed import broadcast_object_list  # noqa: PLC0415

            broadcast_object_list(said, src=0)
        if isinstance(said[0], RoseError):
            raise said[0]
        self._version, self._step = said[0], trainer.state.global_step

    def generate(self, prompt_ids: Sequence[list[int]], trainer: Any) -> list[Episode]:
        """Return one turn for each prompt; a prompt may go on from a turn before."""
        episodes = self._new(prompt_ids, trainer)
        self._play([partial(self._speak, one, trainer) for one in episodes])
        return episodes

    def _new(self, prompt_ids: Sequence[list[int]], trainer: Any) -> list[Episode]:
        first, self._episodes = self._episodes, self._episodes + len(prompt_ids)
        ranks, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        return [Episode((first + at) * ranks + rank, ids) for at, ids in enumerate(prompt_ids)]

    def _play(self, parts: list[Callable[[RolloutSession], Awaitable[object]]]) -> None:
        """Run all parts at the same time."""

        async def play() -> None:
            threads = ThreadPoolExecutor(max(1, len(parts)))  # a slow environment delays no other
            asyncio.get_running_loop().set_default_executor(threads)
            async with self._transfer.client.session() as session:
                watch = asyncio.ensure_future(self._watch(session))
                try:
                    await asyncio.gather(*(part(session) for part in parts))
                finally:
                    watch.cancel()

        run(play())

    async def _watch(self, session: RolloutSession) -> None:
        """Report when requests wait because no worker has the weights yet."""
        least, waited_s = self._version - self._max_staleness, 0.0
        while True:
            await asyncio.sleep(_WATCH_S)
            waited_s += _WATCH_S
            try:
                there = list(held_versions(await session.call("GET", "/weight_versions")))
            except RoseError:  # the requests themselves meet it too, and report it
                continue
            if any(held >= least for held in there):
                waited_s = 0.0
                continue
            self._transfer.client.report(
                waited_s, no_worker(least, there), "add a worker: `rose workers add URL`"
            )

    async def _converse(
        self,
        episode: Episode,
        trainer: Any,
        environment: Any,
        session: RolloutSession,
        *,
        is_chat: bool,
    ) -> None:
        """Let the model and the environment speak in turns until one of them has ended."""
        templates, limit = Templates(trainer), trainer.max_completion_length
        while True:
            start = len(episode.ids)
            is_whole = await self._speak(episode, trainer, session)
            text = str(templates.tokenizer.decode(episode.ids[start:], skip_special_tokens=True))
            episode.turns.append(text)
            if environment is None or not is_whole:
                return
            reply = await asyncio.to_thread(environment, text)
            if isawaitable(reply):
                reply = await reply
            if reply is None:
                return
            ids = templates.reply(reply, is_chat=is_chat)
            if len(episode.ids) + len(ids) >= limit:
                return
            episode.add(ids, [0.0] * len(ids), is_model=False)

    async def _speak(self, episode: Episode, trainer: Any, session: RolloutSession) -> bool:
        """Generate the model's next turn. Return whether the model has ended it."""
        while True:
            choice = await self._ask(episode, trainer, session)
            episode.add(choice["token_ids"], choice["logprobs"]["token_logprobs"], is_model=True)
            if choice["token_ids"]:  # an aborted turn may have none
                start = choice["weight_version"]["start"]
                episode.oldest = start if episode.oldest is None else min(episode.oldest, start)
            is_full = len(episode.ids) >= trainer.max_completion_length
            # Another client may abort all sequences of the service; the turn then goes on.
            if choice["finish_reason"] != "abort" or is_full:
                return bool(choice["finish_reason"] == "stop")

    async def _ask(self, episode: Episode, trainer: Any, session: RolloutSession) -> dict[str, Any]:
        turn = f"{self._seed}/{episode.number}/{len(episode.turns)}"
        seed = blake2b(turn.encode(), digest_size=_SEED_BYTES).digest()
        episode.requests += 1
        answer = await session.call(
            "POST",
            "/v1/completions",
            {
                "prompt": [*episode.prompt_ids, *episode.ids],
                "max_tokens": trainer.max_completion_length - len(episode.ids),
                "seed": int.from_bytes(seed, "little"),
                "stop_token_ids": trainer.eos_token_ids,
                "weight_version": {"min": max(0, self._version - self._max_staleness)},
                "temperature": trainer.temperature,
                "top_p": trainer.top_p,
                "top_k": trainer.top_k,
                "min_p": trainer.min_p,
                "repetition_penalty": trainer.repetition_penalty,
                "logprobs": 0,
                "return_token_ids": True,
                **(trainer.args.generation_kwargs or {}),  # such as `stop`
            },
            headers={
                "idempotency-key": f"{self._run}/{episode.number}/{episode.requests}",
                **({"x-session-id": episode.conversation} if episode.conversation else {}),
            },
        )
        return dict(answer["choices"][0])


class _Generation:
    """What TRL calls in the place of its `VLLMGeneration`."""

    def __init__(self, rollouts: TrlRollouts, trainer: Any) -> None:
        self._rollouts, self._trainer = rollouts, trainer

    def sync_weights(self) -> None:
        """Publish the trainer's weights."""
        self._rollouts.publish(self._trainer)

    def generate(
        self,
        prompts: list[list[int]],
        images: Any,
        num_generations: int,  # noqa: ARG002 (TRL repeats each prompt itself)
        profiler: Any,
    ) -> tuple[Any, ...]:
        """Return prompts, completions, logprobs and the ids of the logprobs."""
        if images is not None:
            raise InvalidArgument("prompts must be text: images are not sent to the service")
        with profiler:
            said = self._rollouts.generate(prompts, self._trainer)
        logprobs = [[[one] for one in episode.logprobs] for episode in said]
        ids = [[[one] for one in episode.ids] for episode in said]
        return prompts, [episode.ids for episode in said], logprobs, ids
