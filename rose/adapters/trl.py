"""Use of the rollout service in TRL's trainers, without NCCL or vLLM.

Pass `TrlRollouts` as `rollout_func=` to GRPOTrainer, or `TrlWeightTransfer` as `weight_transfer=`
to AsyncGRPOTrainer. Workers receive the weights from `rose.publish(trl_weights(model))`.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from rose.clock import BootClock
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable
from rose.transfer.published import WeightPublisher
from rose.units import NS_PER_S

_POLL_S: Final = 0.02
_ANSWER_S: Final = 60.0
_COMPLETION_S: Final = 3600.0
# Statuses after which a request is repeated: no worker has the weights yet (409), too many
# sequences are in flight (429), or no worker is registered (503).
_TEMPORARY: Final = frozenset({409, 429, 503})
_RETRY_S: Final = 0.2
_REQUESTS: Final = 64

Tool = Callable[[str, list[str]], str | None]


def trl_weights(model: Any) -> dict[str, Any]:
    """Return a model's parameters by name in bf16, the dtype of rose's workers."""
    return _as_bf16(model.named_parameters())


def _as_bf16(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: tensor.detach().bfloat16() for name, tensor in named}


class TrlWeightTransfer:
    """Publishes the trainer's weights while the rollout service is paused.

    It has the methods of TRL 1.16's `WeightTransferProtocol`. Workers follow the publisher, as with
    `rose.receive`, and report each version that they commit.

    Args:
        url: URL of the rollout service.
        publisher: publisher of `trl_weights(model)`; the caller closes it.
        token: bearer token of the service; None: the service needs no token.
        commit_s: longest time in seconds until all workers have committed a version, and until a
            worker can take a request.
    """

    def __init__(
        self,
        url: str,
        publisher: WeightPublisher,
        *,
        token: str | None = None,
        commit_s: float = 300.0,
    ) -> None:
        self._url = url.rstrip("/")
        self._publisher = publisher
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._commit_s = commit_s
        self._clock = BootClock()

    @property
    def version(self) -> int:
        """Number of the newest published version."""
        return self._publisher.version

    def init_weight_transfer(self) -> None:
        """Check that the service answers.

        Raises:
            Unavailable: the service does not answer.
        """
        self._call("GET", "/weight_versions")

    def pause(self) -> None:
        """Pause the service, and return once no worker generates; `resume` continues sequences."""
        self._call("POST", "/pause?mode=keep")

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Publish weights as the next version, and return once every worker has committed it.

        Args:
            iterator: name and tensor of each parameter.

        Raises:
            InvalidArgument: names or shapes differ from those of the publisher.
            DeadlineExceeded: a worker has not committed the version in time.
        """
        version = self._publisher.update(_as_bf16(iterator))
        self._call("POST", "/publish_weight_version", {"version": version})
        end_ns = self._end_ns()
        while behind := self._behind(version):
            if self._clock.now_ns() > end_ns:
                raise DeadlineExceeded(
                    f"workers must commit version {version} within {self._commit_s} s; "
                    f"{behind} of them did not"
                )
            self._clock.sleep(_POLL_S)

    def resume(self) -> None:
        """Let workers generate again."""
        self._call("POST", "/resume")

    def destroy(self) -> None:
        """Do nothing: there is no process group to leave."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the first choice of `/v1/completions`; wait while no worker can take the request.

        Args:
            body: body of the request.

        Raises:
            InvalidArgument: the service refuses the request.
            Unavailable: no worker could take the request within `commit_s`, or the service does not
                answer.
        """
        end_ns = self._end_ns()
        while (choice := self._complete_once(body, end_ns)) is None:
            self._clock.sleep(_RETRY_S)
        return choice

    def _complete_once(self, body: dict[str, Any], end_ns: int) -> dict[str, Any] | None:
        """Send the request once. Return None if it failed but may be retried before `end_ns`."""
        try:
            answer = self._call("POST", "/v1/completions", body, answer_s=_COMPLETION_S)
        except _Refused as error:
            if error.status not in _TEMPORARY:
                raise InvalidArgument(str(error)) from error
            if self._clock.now_ns() > end_ns:
                raise
            return None
        return dict(answer["choices"][0])

    def _end_ns(self) -> int:
        return self._clock.now_ns() + round(self._commit_s * NS_PER_S)

    def _behind(self, version: int) -> int:
        """Return the number of workers with older weights."""
        there = self._call("GET", "/weight_versions")["versions"]
        return sum(count for held, count in there.items() if int(held) < version)

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        answer_s: float = _ANSWER_S,
    ) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data=content, headers=self._headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=answer_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            reason = error.read().decode()
            raise _Refused(f"{method} {path} was refused: {reason}", error.code) from error
        except OSError as error:
            raise Unavailable(f"the rollout service at {self._url} does not answer") from error


class _Refused(Unavailable):
    """The service answered with an error status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Episode:
    """One completion: the model's turns, and the tool's replies between them.

    Args:
        prompt_ids: token ids of the prompt.
        ids: token ids after the prompt.
        logprobs: logprob of each of `ids`; 0 for tokens of the tool.
        mask: for each of `ids`, 1 if the model generated it, 0 if the tool returned it.
        turns: text of each turn of the model.
        oldest: oldest version of the weights that generated any of the tokens.
    """

    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    oldest: int | None = None

    def add(self, ids: Sequence[int], logprobs: Sequence[float], *, is_model: bool) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.mask += [int(is_model)] * len(ids)


class TrlRollouts:
    """Generates completions on the workers of a rollout service: `GRPOTrainer(rollout_func=...)`.

    After each step of the trainer, its new weights are published before the next completions, and
    only workers with these weights generate. Reward functions also get `turns`, the texts of the
    model's turns, and `staleness`, the number of versions by which the oldest token is behind the
    newest weights.

    Args:
        transfer: object that publishes the trainer's weights to the workers.
        tool: function of the prompt and the model's turns so far. It returns the text that is
            appended before the next turn, or None at the end of the episode. Several threads call
            it. None: each completion has one turn.
        seed: seed of the sampling; equal seeds and weights give equal completions.
    """

    def __init__(
        self, transfer: TrlWeightTransfer, *, tool: Tool | None = None, seed: int = 0
    ) -> None:
        self._transfer = transfer
        self._tool = tool
        self._seed = seed
        self._step: int | None = None
        self._episodes = 0

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Return one completion for each prompt, as TRL expects them.

        Raises:
            InvalidArgument: a prompt is a conversation, or workers do not support the trainer's
                sampling options.
            Unavailable, DeadlineExceeded: the service or its workers do not answer in time.
        """
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise InvalidArgument(
                "each prompt must be a string: apply the chat template in the data set"
            )
        if trainer.state.global_step != self._step:
            self._transfer.pause()
            self._transfer.send_weights(trainer.model.named_parameters())
            self._transfer.resume()
            self._step = trainer.state.global_step
        first, self._episodes = self._episodes, self._episodes + len(prompts)
        with ThreadPoolExecutor(_REQUESTS) as pool:
            episodes = list(
                pool.map(
                    lambda at: self._play(prompts[at], trainer, number=first + at),
                    range(len(prompts)),
                )
            )
        version = self._transfer.version
        return {
            "prompt_ids": [one.prompt_ids for one in episodes],
            "completion_ids": [one.ids for one in episodes],
            "logprobs": [one.logprobs for one in episodes],
            "env_mask": [one.mask for one in episodes],
            "turns": [one.turns for one in episodes],
            "staleness": [version - (one.oldest or version) for one in episodes],
        }

    def _play(self, prompt: str, trainer: Any, *, number: int) -> _Episode:
        tokenizer, limit = trainer.processing_class, trainer.max_completion_length
        episode = _Episode(tokenizer(prompt)["input_ids"])
        while True:
            self._speak(episode, trainer, number=number)
            is_over = episode.ids[-1] not in trainer.eos_token_ids
            episode.turns.append(_last_turn(episode, tokenizer))
            reply = None if is_over or self._tool is None else self._tool(prompt, episode.turns)
            if reply is None:
                return episode
            ids = tokenizer(reply, add_special_tokens=False)["input_ids"]
            if len(episode.ids) + len(ids) >= limit:
                return episode
            episode.add(ids, [0.0] * len(ids), is_model=False)

    def _speak(self, episode: _Episode, trainer: Any, *, number: int) -> None:
        """Generate the model's next turn and append it to the episode."""
        choice = self._transfer.complete(
            {
                "prompt": [*episode.prompt_ids, *episode.ids],
                "max_tokens": trainer.max_completion_length - len(episode.ids),
                "seed": hash((self._seed, number, len(episode.turns))),
                "stop_token_ids": trainer.eos_token_ids,
                "weight_version": {"min": self._transfer.version},
                "temperature": trainer.temperature,
                "top_p": trainer.top_p,
                "top_k": trainer.top_k,
                "min_p": trainer.min_p,
                "repetition_penalty": trainer.repetition_penalty,
                "logprobs": 0,
                "return_token_ids": True,
            }
        )
        episode.add(choice["token_ids"], choice["logprobs"]["token_logprobs"], is_model=True)
        start = choice["weight_version"]["start"]
        episode.oldest = start if episode.oldest is None else min(episode.oldest, start)


def _last_turn(episode: _Episode, tokenizer: Any) -> str:
    start = len(episode.mask)
    while start and episode.mask[start - 1]:
        start -= 1
    return str(tokenizer.decode(episode.ids[start:], skip_special_tokens=True))
