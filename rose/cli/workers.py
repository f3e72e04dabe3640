"""`rose workers add|drain|remove|list`: the engines behind a running rollout service."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from rose.config import read_environment
from rose.errors import InvalidArgument, Unavailable

_PATIENCE_S: Final = 30.0
_ADD_S: Final = 120.0  # the service may wait some seconds for each engine
_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_COLUMNS: Final = ("id", "state", "kind", "runtime_type", "version", "load", "kv_tokens", "engine")
_HEADS: Final = ("NUMBER", "STATE", "KIND", "DIALECT", "VERSION", "RUNNING", "KV TOKENS", "ENGINE")


@click.group()
def workers() -> None:
    """Add, drain, remove and list the engines of a running service.

    ROSE_TOKEN is the bearer token of the service.
    """


def _service(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument and the option that all commands have."""
    ca = click.option("--ca", type=_FILE, help="Authority of the service's certificate, in PEM.")
    return click.argument("service", metavar="SERVICE")(ca(command))


@workers.command()
@_service
@click.argument("engines", nargs=-1, required=True, metavar="ENGINE...")
@click.option("--kind", type=click.Choice(["dedicated", "borrowed"]), help="Kind of the workers.")
@click.option("--engine-token", type=_FILE, metavar="FILE", help="File with the engines' token.")
def add(
    service: str,
    engines: tuple[str, ...],
    ca: Path | None,
    kind: str | None,
    engine_token: Path | None,
) -> None:
    """Add engines by their URLs, such as http://127.0.0.1:8001, to the service at URL SERVICE."""
    token = None if engine_token is None else engine_token.read_text().strip()
    for engine in engines:
        body = {"url": engine, "kind": kind, "api_key": token}
        row = _ask(service, "POST", "/workers", ca, body, patience_s=_ADD_S)
        told = f": {row['reason']}" if row["reason"] else ""
        click.echo(f"worker {row['worker_id']}: {engine} {row['state']}{told}")


@workers.command()
@_service
@click.argument("number", type=click.IntRange(min=0))
def drain(service: str, number: int, ca: Path | None) -> None:
    """Move a worker's turns elsewhere, at their last tokens; it gets no others."""
    _ask(service, "POST", f"/workers/{number}/drain", ca, {}, patience_s=_ADD_S)
    click.echo(f"worker {number} is drained")


@workers.command()
@_service
@click.argument("number", type=click.IntRange(min=0))
def remove(service: str, number: int, ca: Path | None) -> None:
    """Drain a worker, and forget its engine."""
    _ask(service, "DELETE", f"/workers/{number}", ca)
    click.echo(f"worker {number} is removed")


@workers.command(name="list")
@_service
@click.option("--json", "is_json", is_flag=True, help="Print JSON, with all fields.")
def list_(service: str, ca: Path | None, *, is_json: bool) -> None:
    """List the workers: what each does, and why one is not ready."""
    rows = _ask(service, "GET", "/workers", ca)["workers"]
    if is_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = [_HEADS, *(tuple(_cell(row[key]) for key in _COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line, row in zip(table, [{}, *rows], strict=True):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
        if row.get("reason"):
            click.echo(f"    {row['reason']}")


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _ask(
    service: str,
    method: str,
    path: str,
    ca: Path | None,
    body: Any = None,
    *,
    patience_s: float = _PATIENCE_S,
) -> Any:
    """Return the JSON answer of the service, which is called without a proxy."""
    if not service.startswith(("http://", "https://")):
        raise InvalidArgument(f"SERVICE must be an http or https URL, got '{service}'")
    token = read_environment().token
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    headers |= {} if data is None else {"content-type": "application/json"}
    url = service.rstrip("/") + path
    request = urllib.request.Request(url, data, headers, method=method)
    tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), tls)
    try:
        with opener.open(request, timeout=patience_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise _error_of(error.code, error.read(1 << 16)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Unavailable(f"the service at {service} does not answer: {reason}") from error


def _error_of(status: int, data: bytes) -> InvalidArgument:
    try:
        message = str(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = data[:500].decode(errors="replace")
    return InvalidArgument(f"the service answered {status}: {message}")
