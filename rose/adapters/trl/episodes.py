"""Completions in the making, and the token ids of prompts and of what follows a turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rose.errors import InvalidArgument

_STUB: Final = ({"role": "user", "content": "-"}, {"role": "assistant", "content": "-"})


@dataclass(slots=True)
class Episode:
    """One completion: the model's turns, and what the environment says between them.

    Args:
        number: number of the completion; no other completion of any process has it.
        prompt_ids: token ids of the prompt.
        conversation: name that links its turns, so that they stay where their cache is; None: the
            service finds earlier turns by their tokens.
        ids: token ids after the prompt.
        logprobs: logprob of each of `ids`; 0 for tokens of the environment.
        mask: for each of `ids`, 1 if the model generated it, 0 if it is of the environment.
        turns: text of each turn of the model.
        oldest: oldest version of the weights that generated any of the tokens.
        requests: number of requests so far; a turn that somebody aborted takes several.
    """

    number: int
    prompt_ids: list[int]
    conversation: str | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    oldest: int | None = None
    requests: int = 0

    def add(self, ids: Sequence[int], logprobs: Sequence[float], *, is_model: bool) -> None:
        """Append tokens."""
        self.ids += ids
        self.logprobs += logprobs
        self.mask += [int(is_model)] * len(ids)

    def staleness(self, version: int) -> int:
        """Return by how many versions the oldest token is behind `version`."""
        return version - (version if self.oldest is None else self.oldest)


class Templates:
    """Turns prompts and replies into token ids, as the trainer itself would.

    Args:
        trainer: trainer with its tokenizer, its chat template and the options of the template.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._processing = trainer.processing_class
        self.tokenizer = getattr(self._processing, "tokenizer", self._processing)

    def prompts(self, prompts: Sequence[Any]) -> list[list[int]]:
        """Return the token ids of prompts, which are all texts or all conversations.

        Raises:
            InvalidArgument: a message has an image.
        """
        if all(isinstance(one, str) for one in prompts):
            ids: list[list[int]] = self._processing(text=list(prompts))["input_ids"]
            return ids
        for message in (message for prompt in prompts for message in prompt):
            parts = message["content"] if isinstance(message["content"], list) else []
            if any(part["type"] != "text" for part in parts):
                raise InvalidArgument("prompts must be text: images are not sent to the service")
        return self._templated(list(prompts), is_prompt=True)

    def reply(self, text: str, *, is_chat: bool) -> list[int]:
        """Return the token ids of a reply to the model, up to where the model speaks again.

        Args:
            text: what the environment says.
            is_chat: whether the prompt is a conversation; the reply is then a message of the user.

        Raises:
            InvalidArgument: the chat template changes earlier messages.
        """
        if not is_chat:
            ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            return ids
        before, after = (
            self._templated([[*_STUB, *more]], is_prompt=bool(more))[0]
            for more in ((), ({"role": "user", "content": text},))
        )
        ends = self._trainer.eos_token_ids
        # The model ended its turn by a token itself, and templates write more after it.
        end = max((at + 1 for at, one in enumerate(before) if one in ends), default=len(before))
        if after[:end] != before[:end]:
            raise InvalidArgument(
                "the chat template must leave earlier messages as they are when one is added"
            )
        return after[end:]

    def _templated(self, conversations: list[Any], *, is_prompt: bool) -> list[list[int]]:
        ids: list[list[int]] = self._processing.apply_chat_template(
            conversation=conversations,
            chat_template=self._trainer.chat_template,
            add_generation_prompt=is_prompt,
            tokenize=True,
            return_dict=True,
            **self._trainer.chat_template_kwargs,
        )["input_ids"]
        return ids
