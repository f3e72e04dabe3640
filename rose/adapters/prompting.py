"""From the prompt of a body to token ids: texts are tokenised, conversations are templated."""

import asyncio
import json
from contextlib import suppress
from typing import Any, Final

import msgspec

from rose.adapters.bodies import Body, ChatBody, CompletionBody, Count, GenerateBody, SglangBody
from rose.adapters.text import Tokenizer, encoded, templated
from rose.errors import InvalidArgument

# Tokenising takes about 1 ms per 4 kB; longer texts do not hold up the event loop.
_LONG_BYTES: Final = 16 << 10
_IDS: Final = list[Count]
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal"})


async def prompts_of(body: Body, raw: bytes, tokenizer: Tokenizer | None) -> list[list[int]]:
    """Return the token ids of each prompt of a request.

    Args:
        body: body of the request.
        raw: bytes of the body; a long text is tokenised in another thread.
        tokenizer: tokenizer for texts, or None.

    Raises:
        InvalidArgument: a prompt is empty or malformed, or it is text and there is no tokenizer.
    """
    if isinstance(body, GenerateBody):
        return [body.token_ids]
    is_text = isinstance(body, ChatBody) or not _first_is_number(body)
    if is_text and len(raw) > _LONG_BYTES:
        return await asyncio.to_thread(_prompts, body, tokenizer)
    return _prompts(body, tokenizer)


def _first_is_number(body: CompletionBody | SglangBody) -> bool:
    given: Any = body.prompt if isinstance(body, CompletionBody) else body.input_ids
    first = given[0] if isinstance(given, list) and given else None
    return isinstance(first[0] if isinstance(first, list) and first else first, int)


def _prompts(body: CompletionBody | ChatBody | SglangBody, tokenizer: Any) -> list[list[int]]:
    if isinstance(body, ChatBody):
        return [_conversation(body, tokenizer)]
    if isinstance(body, CompletionBody):
        is_special = body.add_special_tokens is not False
        return _several(body.prompt, "prompt", tokenizer, is_special=is_special)
    if (body.text is None) == (body.input_ids is None):
        raise InvalidArgument("a body must have either input_ids or text")
    name = "text" if body.input_ids is None else "input_ids"
    return _several(getattr(body, name), name, tokenizer, is_special=True)


def is_batch(body: SglangBody) -> bool:
    """Return whether a request of SGLang has a list of prompts, so that a list answers it."""
    given = body.text if body.input_ids is None else body.input_ids
    first = given[0] if isinstance(given, list) and given else 0
    return isinstance(first, list | str) and isinstance(given, list)


def _several(given: Any, name: str, tokenizer: Any, *, is_special: bool) -> list[list[int]]:
    if not given:
        raise InvalidArgument(f"{name} must have at least one token")
    alone = isinstance(given, str) or isinstance(given[0], int)
    found = []
    for place, one in enumerate([given] if alone else given):
        if isinstance(one, str):
            found.append(encoded(tokenizer, one, add_special_tokens=is_special))
            continue
        try:
            found.append(msgspec.convert(one, _IDS))
        except msgspec.ValidationError as error:
            where = name if alone else f"{name}[{place}]"
            raise InvalidArgument(f"{where} must be token ids: {error}") from None
    return found


def _conversation(body: ChatBody, tokenizer: Tokenizer | None) -> list[int]:
    options = {
        **(body.chat_template_kwargs or {}),
        "add_generation_prompt": body.add_generation_prompt is not False,
        "continue_final_message": bool(body.continue_final_message),
    }
    if body.tools:
        options["tools"] = body.tools
    if body.reasoning_effort is not None:
        options["reasoning_effort"] = body.reasoning_effort
        options.setdefault("enable_thinking", body.reasoning_effort != "none")
    messages = [_message(one, place) for place, one in enumerate(body.messages)]
    return templated(tokenizer, messages, options)


def _message(given: dict[str, Any], place: int) -> dict[str, Any]:
    """Return a message in the format of chat templates.

    Fields that are null or empty are left out: clients send whole messages of the API back, and
    templates ask whether a field is there.
    """
    if not isinstance(given.get("role"), str):
        raise InvalidArgument(f"messages[{place}].role must be a text")
    message = {name: one for name, one in given.items() if one not in (None, [], {})}
    message["content"] = _content(given.get("content"), place)
    reasoning = given.get("reasoning_content") or given.get("reasoning")
    if reasoning:
        message["reasoning_content"] = message["reasoning"] = reasoning
    if "tool_calls" in message:
        message["tool_calls"] = [_call(one, place) for one in message["tool_calls"]]
    return message


def _content(content: Any, place: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise InvalidArgument(
                f"messages[{place}].content must be a text or parts with text, got {kind!r:.40}"
            )
        texts.append(text)
    return "".join(texts)


def _call(call: Any, place: int) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, as templates want them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidArgument(f"messages[{place}].tool_calls must have a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # Models write calls that are no JSON, too; the template prints these as they are.
        with suppress(ValueError):
            arguments = json.loads(arguments or "{}")
    return {**call, "function": {**function, "arguments": arguments}}
