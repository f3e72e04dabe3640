"""The HTTP application of the rollout service.

Requests that generate tokens are answered by plain ASGI (`generating`), all others by FastAPI.
"""

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from rose import __version__
from rose.adapters import bodies
from rose.adapters.control import add_control, add_status
from rose.adapters.events_route import EngineState, add_engine
from rose.adapters.fleet import Fleet
from rose.adapters.generating import PATHS, Generating
from rose.adapters.guard import Guard
from rose.adapters.http_errors import Denied, body_of, error_body, headers_of, status_of
from rose.adapters.json_answer import Json
from rose.adapters.service import RolloutService
from rose.adapters.sglang_routes import add_sglang_routes
from rose.adapters.text import Tokenizer
from rose.adapters.text_routes import add_text_routes
from rose.adapters.weight_updates import WeightSource, WeightUpdates
from rose.adapters.worker_routes import add_worker_routes
from rose.errors import RoseError

# Error responses of the routes, for the OpenAPI schema.
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"description": "The request breaks a rule; the message names the rule."},
    401: {"description": "The bearer token is missing or wrong."},
    404: {"description": "The model is not served."},
    408: {"description": "The body took too long to arrive."},
    409: {
        "description": "No worker has weights that the request accepts; `versions` has the number "
        "of workers by version."
    },
    413: {"description": "The body is too large."},
    415: {"description": "The body is compressed."},
    429: {"description": "Too many sequences are in flight; retry after Retry-After seconds."},
    501: {"description": "The service cannot do this, and says what it can do instead."},
    503: {"description": "The service has no workers, or stops."},
    504: {"description": "A time limit was reached."},
}
_SUMMARIES: Final = {
    "/v1/completions": "Complete prompts of token ids, or of text if there is a tokenizer.",
    "/v1/chat/completions": "Answer a conversation, by the chat template of the tokenizer.",
    "/inference/v1/generate": "Complete a prompt of token ids, as SkyRL, prime-rl and TRL do.",
    "/generate": "Complete prompts of token ids or text, as slime, miles and AReaL do.",
}


def rollout_app(
    service: RolloutService,
    *,
    model: str | None = None,
    dtype: str = "bfloat16",
    tokenizer: Tokenizer | None = None,
    token: str | None = None,
    weights: WeightSource | None = None,
    engine: EngineState | None = None,
    fleet: Fleet | None = None,
) -> Guard:
    """Return the ASGI application of an open service.

    Args:
        service: service that generates the tokens.
        model: name of the model; requests may name no other. None: its name at the engines.
        dtype: dtype of the weights, as `/server_info` reports it.
        tokenizer: tokenizer for text and chat; None: that of the service, which may get one later.
            Without one only token ids are accepted and returned.
        token: bearer token that clients must send; None: no token is needed.
        weights: function that makes workers commit the versions which clients send over HTTP; None:
            versions come from `rose.publish` only.
        engine: state of the engine whose only service this is; None: the service has no engine of
            its own.
        fleet: engines that may be added and removed, and that are offered published versions; None:
            the workers stay the same.
    """
    service.model = model
    service.tokenizer = service.tokenizer or tokenizer
    app = FastAPI(
        title="rose rollout service", version=__version__, responses=_ERRORS, docs_url=None
    )
    generating = Generating(service)
    _add_errors(app, service)
    add_status(app, service, dtype, has_source=weights is not None)
    add_text_routes(app, service)
    add_control(app, service, WeightUpdates(service, weights), fleet)
    add_sglang_routes(app, service, generating)
    if engine is not None:
        add_engine(app, engine)
    if fleet is not None:
        add_worker_routes(app, fleet)
    _describe(app)
    fast = dict.fromkeys(PATHS, generating)
    return Guard(app, fast, service=service, token=token, fail=generating.fail)


def _add_errors(app: FastAPI, service: RolloutService) -> None:
    """Answer the errors of FastAPI's routes in the format of all others."""

    async def invalid(_: Request, error: Exception) -> Response:
        found = error.errors() if isinstance(error, RequestValidationError) else []
        message = "; ".join(map(_sentence, found[:3])) or "the body must be JSON"
        return Json(error_body(400, message), 400)

    async def http(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = str(getattr(error, "detail", error))
        made = Json(error_body(status, message), status, headers_of(status))
        made.headers.update(getattr(error, "headers", None) or {})
        return made

    async def raised(_: Request, error: Exception) -> Response:
        status = status_of(error)
        there = service.versions() if status == 409 else None
        return Json(body_of(error, there), status, headers_of(status))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    for kind in (RoseError, Denied, Exception):
        app.add_exception_handler(kind, raised)


def _sentence(error: Any) -> str:
    """Return one error of pydantic as `place: rule`."""
    if error["type"] == "json_invalid":
        return f"the body must be JSON: {error.get('ctx', {}).get('error', 'it is malformed')}"
    place = ".".join(str(part) for part in error["loc"] if part != "body") or "the body"
    return f"{place}: {error['msg'].removeprefix('Value error, ')}"


def _describe(app: FastAPI) -> None:
    """Add the routes that FastAPI does not know to the OpenAPI schema."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            kinds, parts = bodies.schema()
            made.setdefault("components", {}).setdefault("schemas", {}).update(parts)
            errors = {str(status): one for status, one in _ERRORS.items()}
            answers = {"200": {"description": "The tokens, or a stream of them."}, **errors}
            for path, kind in PATHS.items():
                content = {"application/json": {"schema": kinds[kind.__name__]}}
                body = {"required": True, "content": content}
                route = {"summary": _SUMMARIES[path], "requestBody": body, "responses": answers}
                made["paths"][path] = {"post": route}
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
