"""Parsing of engines' answers. One event is one step of the engine, so this is the hot path."""

from typing import Any, Final, TypeAlias

import msgspec

from rose.errors import CorruptData
from rose.scheduler.worker import TurnEnd

Top: TypeAlias = tuple[tuple[int, float], ...]
"""The most likely tokens of one position: pairs of id and logprob, the most likely first."""

_PLACEHOLDER: Final = "token_id:"
_BAD_REQUEST: Final = 400


class TurnPart:
    """New tokens of a turn, in the order in which the engine sent them.

    Args:
        version: version of the weights for tokens whose event has no version.
        tops: number of most likely tokens to keep for each token.
    """

    __slots__ = (
        *("tokens", "logprobs", "versions", "top_logprobs", "version", "tops", "seen"),
        *("end", "error", "stop_reason", "cached_tokens", "extras", "is_complete"),
    )

    def __init__(self, version: int, tops: int) -> None:
        self.version = version
        self.tops = tops
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.top_logprobs: list[Top] = []
        self.seen = 0  # tokens of all events so far
        self.end: TurnEnd | None = None
        self.error: str | None = None
        self.stop_reason: int | str | None = None
        self.cached_tokens = 0
        self.extras: dict[str, Any] = {}
        self.is_complete = False  # whether no further event of interest follows the end

    def clear(self) -> None:
        """Forget the tokens, because they were reported."""
        self.tokens, self.logprobs, self.versions, self.top_logprobs = [], [], [], []

    def fail(self, status: int, message: str) -> None:
        """End the turn with an error of the engine."""
        is_refusal = _BAD_REQUEST <= status < 500
        self.end = TurnEnd.REFUSED if is_refusal else TurnEnd.FAILED
        self.error, self.is_complete = message, True


class _Span(msgspec.Struct):
    version: int | str
    start: int
    end: int


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []


class _LogprobsWithTop(_Logprobs):
    top_logprobs: list[dict[str, float] | None] = []


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[_Span] | None = None
    prompt_logprobs: Any = None


class _ChoiceWithTop(_Choice):
    logprobs: _LogprobsWithTop | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str = "no reason given"
    code: int | str | None = None
    status_code: int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class _EventWithTop(_Event):
    choices: list[_ChoiceWithTop] = []  # type: ignore[assignment]


_decode = msgspec.json.Decoder(_Event).decode
_decode_with_top = msgspec.json.Decoder(_EventWithTop).decode


def add_completion(part: TurnPart, data: bytes, *, is_whole: bool = False) -> None:
    """Add an event of `/v1/completions`, or with `is_whole` the answer that is not streamed.

    Raises:
        msgspec.DecodeError: it is no event.
        CorruptData: tokens lack their ids or logprobs.
    """
    event = _decode_with_top(data) if part.tops else _decode(data)
    if event.choices:
        _add_choice(part, event.choices[0], is_whole=is_whole)
    if event.usage is not None:
        details = event.usage.prompt_tokens_details
        part.cached_tokens = (details and details.cached_tokens) or 0
        part.is_complete = part.end is not None
    if event.error is not None:
        part.fail(_status(event.error), event.error.message)


def _add_choice(part: TurnPart, choice: _Choice, *, is_whole: bool) -> None:
    ids, logprobs = choice.token_ids, choice.logprobs
    if ids:
        count = len(ids)
        found = logprobs.token_logprobs if logprobs is not None else []
        found = found[-count:] if is_whole else found  # `echo` reports those of the prompt too
        if len(found) != count or None in found:
            raise CorruptData(f"each of {count} tokens must have a logprob, got {found[:9]}")
        part.tokens += ids
        part.logprobs += found  # type: ignore[arg-type]  # none is null
        if part.tops:
            tops = logprobs.top_logprobs[-count:]  # type: ignore[union-attr]
            part.top_logprobs += [_top(one, part.tops) for one in tops]
        _add_versions(part, count, choice.weight_versions)
    elif ids is None and logprobs is not None and logprobs.token_logprobs:
        raise CorruptData("the engine sent no token ids: vLLM has them since 0.10.2")
    if choice.finish_reason is not None:
        is_over = choice.finish_reason != "abort"
        part.end = TurnEnd.FINISHED if is_over else TurnEnd.INTERRUPTED
        part.stop_reason = choice.stop_reason
        if choice.prompt_logprobs is not None:
            part.extras["prompt_logprobs"] = choice.prompt_logprobs


def _add_versions(part: TurnPart, count: int, spans: list[_Span] | None) -> None:
    """Add the versions of `count` tokens; spans count from the turn's first token here."""
    start = part.seen
    part.seen += count
    if not spans:
        part.versions += [part.version] * count
        return
    part.version = int(spans[-1].version)
    if len(spans) == 1 and spans[0].start <= start:
        part.versions += [part.version] * count
        return
    for place in range(start, start + count):
        at = next((one for one in spans if one.start <= place < one.end), spans[-1])
        part.versions.append(int(at.version))


def _top(found: dict[str, float] | None, count: int) -> Top:
    """Return the `count` most likely tokens; the sampled one may come beside them."""
    pairs = [
        (int(token.removeprefix(_PLACEHOLDER)), logprob) for token, logprob in (found or {}).items()
    ]
    pairs.sort(key=lambda pair: -pair[1])
    return tuple(pairs[:count])


def _status(error: _Error) -> int:
    code = error.code if isinstance(error.code, int) else error.status_code
    return 500 if code is None else code


# ---- SGLang --------------------------------------------------------------------------------------


class _Finish(msgspec.Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


_Row: TypeAlias = tuple[float, int, Any]
"""Logprob, id and text of a token."""


class _Meta(msgspec.Struct):
    output_token_logprobs: list[_Row] = []
    output_top_logprobs: list[list[_Row] | None] | None = None
    finish_reason: _Finish | None = None
    cached_tokens: int = 0
    weight_version: int | str | None = None


class _Answer(msgspec.Struct):
    meta_info: _Meta | None = None
    error: _Error | None = None


_decode_sglang = msgspec.json.Decoder(_Answer).decode


def add_sglang(part: TurnPart, data: bytes, *, is_cumulative: bool) -> None:
    """Add an event of SGLang's `/generate`.

    Args:
        part: part that gets the tokens.
        data: JSON of the event.
        is_cumulative: whether each event repeats all tokens of the turn.

    Raises:
        msgspec.DecodeError: it is no event.
    """
    event = _decode_sglang(data)
    if event.error is not None:
        part.fail(_status(event.error), event.error.message)
    meta = event.meta_info
    if meta is None:
        return
    start = part.seen if is_cumulative else 0
    rows = meta.output_token_logprobs[start:]
    if rows:
        part.tokens += [row[1] for row in rows]
        part.logprobs += [row[0] for row in rows]
        part.versions += [part.version] * len(rows)
        part.seen += len(rows)
        if part.tops:
            tops = (meta.output_top_logprobs or [])[start:]
            part.top_logprobs += [
                tuple((row[1], row[0]) for row in one or ())[: part.tops] for one in tops
            ]
    part.cached_tokens = meta.cached_tokens
    if meta.finish_reason is not None:
        _finish(part, meta.finish_reason)


def _finish(part: TurnPart, finish: _Finish) -> None:
    part.is_complete = True
    if finish.type != "abort":
        part.end = TurnEnd.FINISHED
        part.stop_reason = None if isinstance(finish.matched, list) else finish.matched
    elif finish.status_code is None:
        part.end = TurnEnd.INTERRUPTED
    else:
        part.fail(finish.status_code, finish.message or "SGLang aborted it")
