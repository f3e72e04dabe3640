"""`rose serve`: runs the rollout service in front of engines, and starts engines if asked to."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from rose.cli.http_program import PATH, Door, read_token, with_ca
from rose.cli.serve_fleet import Joining, ServePlan, Started, serve_plan
from rose.config import read_environment
from rose.errors import InvalidArgument
from rose.node.fleet_file import CheckedFleet, ServicePart, WeightsPart, read_fleet

TRIAL: Final = "trial"
_TRIAL_WORKERS_MAX: Final = 64
_DEFAULTS: Final = ServicePart()


@click.command()
@click.option(
    "--rollouts",
    "sources",
    multiple=True,
    metavar="URL",
    help="Engine of vLLM, SGLang or `rose engine`; or trial[:N]. May be repeated.",
)
@click.option(
    "--start",
    type=PATH,
    metavar="FILE",
    help="YAML file with the service and the engines to start; no other option goes with it.",
)
@click.option("--listen", default=_DEFAULTS.listen, metavar="ADDRESS", help="HOST:PORT.")
@click.option("--model", metavar="NAME", help="Model name in requests. Default: the engines' name.")
@click.option(
    "--tokenizer",
    type=PATH,
    metavar="FOLDER",
    help="Tokenizer for text and chat. Default: the engines' model, if it is on this machine.",
)
@click.option(
    "--tls", nargs=2, type=PATH, metavar="CERT KEY", help="PEM files, to admit other machines."
)
@click.option("--tls-ca", type=PATH, metavar="CA", help="PEM file: clients need a certificate.")
@click.option(
    "--rollouts-token", type=PATH, metavar="FILE", help="File with the bearer token of the engines."
)
@click.option(
    "--rollouts-ca", type=PATH, metavar="CA", help="PEM file: authority of the engines. [system's]"
)
@click.option(
    "--weights", metavar="HOST:PORT", help="Publisher that stock vLLM engines are told to follow."
)
@click.option(
    "--weights-token", type=PATH, metavar="FILE", help="File with the token of the publisher."
)
@click.option("--sequences", default=_DEFAULTS.sequences, help="Most sequences in flight.")
@click.option(
    "--max-staleness",
    type=click.IntRange(0),
    help="Most versions by which a turn's weights may be behind the newest version.",
)
def serve(*, sources: tuple[str, ...], start: Path | None, **options: Any) -> None:
    """Serve rollouts on engines, through the APIs of vLLM and OpenAI.

    ROSE_TOKEN is the bearer token of this service's clients, and nothing else. Without a token,
    every process on this machine may send requests, and no other machine may. Tokens of engines and
    publishers come from files. At SIGTERM running turns are recalled, and clients get a 503.
    """
    logging.basicConfig(level=logging.WARNING, format="rose: %(message)s")
    if start is not None:
        _refuse_other_options()
        plan = _plan_of(read_fleet(start))
    elif sources:
        plan = _chosen(sources, **options)
    else:
        raise InvalidArgument("rose serve needs --rollouts URL, or --start FILE")
    uvloop.run(serve_plan(plan))


def _refuse_other_options() -> None:
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name != "start" and source is click.core.ParameterSource.COMMANDLINE:
            raise InvalidArgument(f"{parameter.opts[0]} must be in the file, next to the engines")


def _chosen(
    sources: tuple[str, ...],
    *,
    listen: str,
    tls: tuple[Path, Path] | None,
    tls_ca: Path | None,
    rollouts_token: Path | None,
    rollouts_ca: Path | None,
    weights: str | None,
    weights_token: Path | None,
    **settings: Any,
) -> ServePlan:
    """Return what the options ask for."""
    if (weights is None) != (weights_token is None):
        raise InvalidArgument("--weights and --weights-token must be given together")
    token = None if rollouts_token is None else read_token(rollouts_token)
    return ServePlan(
        door=Door(listen, with_ca(tls, tls_ca), read_environment().token),
        trials=sum(_trials(one) for one in sources),
        engines=tuple(Joining(one, token, rollouts_ca) for one in sources if not _trials(one)),
        upstream=None
        if weights is None or weights_token is None
        else (weights, read_token(weights_token)),
        **settings,
    )


def _trials(source: str) -> int:
    """Return the number of trial workers that a source names; 0 if it is a URL."""
    name, _, count = source.partition(":")
    if name != TRIAL:
        return 0
    number = int(count) if count.isdecimal() else 0 if count else 1
    if not 1 <= number <= _TRIAL_WORKERS_MAX:
        raise InvalidArgument(f"trial workers must be 1 to {_TRIAL_WORKERS_MAX}, got {count}")
    return number


def _plan_of(fleet: CheckedFleet) -> ServePlan:
    """Return what a file asks for; all its files are read."""
    service = fleet.file.service
    token = read_environment().token
    if service.token_file is not None:
        token = read_token(fleet.path(service.token_file))
    tls = service.tls and (fleet.path(service.tls.certificate), fleet.path(service.tls.key))
    authority = service.tls and service.tls.ca and fleet.path(service.tls.ca)
    return ServePlan(
        door=Door(service.listen, with_ca(tls or None, authority or None), token),
        model=service.model,
        tokenizer=None if service.tokenizer is None else fleet.path(service.tokenizer),
        sequences=service.sequences,
        max_staleness=service.max_staleness,
        engines=tuple(_joining(fleet)),
        upstream=_upstream(fleet, service.weights),
        started=Started(fleet, fleet.path(service.logs)),
    )


def _joining(fleet: CheckedFleet) -> Iterator[Joining]:
    for part in fleet.file.engines:
        if part.url is not None:
            token = None if part.token_file is None else read_token(fleet.path(part.token_file))
            yield Joining(part.url, token, None if part.ca is None else fleet.path(part.ca))


def _upstream(fleet: CheckedFleet, weights: WeightsPart | None) -> tuple[str, str] | None:
    if weights is None:
        return None
    return weights.address, read_token(fleet.path(weights.token_file))
