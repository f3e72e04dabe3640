"""Routes that only convert between texts and token ids."""

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rose.adapters.bodies import ChatBody, CompletionBody
from rose.adapters.control_bodies import DetokenizeBody, TokenizeBody
from rose.adapters.json_answer import Json
from rose.adapters.parsing import parsed
from rose.adapters.prompting import prompts_of
from rose.adapters.service import RolloutService
from rose.errors import InvalidArgument


def add_text_routes(app: FastAPI, service: RolloutService) -> None:
    """Add the routes `/tokenize`, `/detokenize` and those that render a prompt."""

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody, request: Request) -> Response:
        """Return the token ids of a text or of a conversation."""
        if (body.prompt is None) == (body.messages is None):
            raise InvalidArgument("a body must have either prompt or messages")
        if body.messages is not None:
            chat = ChatBody(
                messages=body.messages,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                chat_template_kwargs=body.chat_template_kwargs,
                tools=body.tools,
            )
            made = await prompts_of(chat, await request.body(), service.tokenizer)
        elif body.prompt:
            text = CompletionBody(prompt=body.prompt, add_special_tokens=body.add_special_tokens)
            made = await prompts_of(text, await request.body(), service.tokenizer)
        else:
            made = [[]]
        (ids,) = made
        strings, tokenizer = None, service.tokenizer
        if body.return_token_strs and tokenizer is not None:
            strings = [str(tokenizer.decode([one], skip_special_tokens=False)) for one in ids]
        most = service.context_tokens()
        return Json(
            {"count": len(ids), "max_model_len": most, "tokens": ids, "token_strs": strings}
        )

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> Response:
        """Return the text of token ids."""
        tokenizer = service.tokenizer
        if tokenizer is None:
            raise InvalidArgument("tokens need a tokenizer, which this service does not have")
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
        return Json({"prompt": str(text)})

    async def rendered(request: Request, kind: Any) -> Response:
        raw = await request.body()
        prompts = await prompts_of(await parsed(raw, kind), raw, service.tokenizer)
        answers = [{"token_ids": one} for one in prompts]
        return Json(answers[0] if kind is ChatBody else answers)

    @app.post("/v1/completions/render", include_in_schema=False)
    async def render(request: Request) -> Response:
        """Return the prompts of a completion, as token ids."""
        return await rendered(request, CompletionBody)

    @app.post("/v1/chat/completions/render", include_in_schema=False)
    async def render_chat(request: Request) -> Response:
        """Return the prompt of a chat completion, as token ids."""
        return await rendered(request, ChatBody)
