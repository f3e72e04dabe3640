"""`rose engine MODEL`: runs one engine of transformers behind the routes of vLLM."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import uvloop

from rose.cli.engine_trial import serve_trial
from rose.cli.http_program import PATH, Door, read_token, with_ca
from rose.config import quiet_grpc, read_environment
from rose.errors import InvalidArgument

if TYPE_CHECKING:
    from rose.node.assembly import Following

TRIAL: Final = "trial"
_OF_ALL_ENGINES: Final = frozenset({"model", "listen", "served_model_name", "tls", "tls_ca"})


@click.command()
@click.argument("model")
@click.option("--listen", default="127.0.0.1:8001", metavar="ADDRESS", help="HOST:PORT.")
@click.option(
    "--attach",
    type=PATH,
    metavar="SOCKET",
    help="Borrow memory and time from the serving engine that listens at SOCKET.",
)
@click.option("--seats", type=click.IntRange(1), default=8, help="Most sequences in a step.")
@click.option(
    "--kv-tokens",
    type=click.IntRange(1),
    default=32_768,
    help="Capacity of the KV cache in tokens; with --attach, the most on loan.",
)
@click.option("--device", default="cpu", metavar="DEVICE", help="cpu, or cuda:N.")
@click.option("--seed", default=0, help="Random seed of a preset's weights.")
@click.option("--weights", metavar="HOST:PORT", help="Publisher of new weights.")
@click.option(
    "--weights-token", type=PATH, metavar="FILE", help="File with the token of the publisher."
)
@click.option(
    "--weights-tls", nargs=3, type=PATH, metavar="CERT KEY CA", help="PEM files for the publisher."
)
@click.option(
    "--weight-version", type=click.IntRange(0), default=0, help="Number of the first weights."
)
@click.option("--served-model-name", metavar="NAME", help="Name in requests. Default: MODEL.")
@click.option(
    "--tls", nargs=2, type=PATH, metavar="CERT KEY", help="PEM files, to admit other machines."
)
@click.option("--tls-ca", type=PATH, metavar="CA", help="PEM file: clients need a certificate.")
def engine(
    *,
    model: str,
    listen: str,
    served_model_name: str | None,
    tls: tuple[Path, Path] | None,
    tls_ca: Path | None,
    weights: str | None,
    weights_token: Path | None,
    weights_tls: tuple[Path, Path, Path] | None,
    weight_version: int,
    **options: Any,
) -> None:
    """Serve MODEL, a preset or a folder, to `rose serve` or to any client of vLLM.

    MODEL `trial` needs no model: its tokens are a hash. It borrows in name only, and gives its
    capacity up at SIGUSR1 until SIGUSR2.

    ROSE_TOKEN is the bearer token of clients. Without a token, every process on this machine may
    send requests, and no other machine may. The program needs no stdin. It ends at SIGTERM. With
    --attach it waits for the serving engine, and waits again whenever that has gone.
    """
    logging.basicConfig(level=logging.WARNING)
    door = Door(listen, with_ca(tls, tls_ca), read_environment().token)
    name = served_model_name or model
    if model == TRIAL:
        _refuse_options_of_models()
        uvloop.run(serve_trial(door, name))
        return
    quiet_grpc()  # before gRPC is imported
    from rose.cli.engine_host import serve_model  # noqa: PLC0415 (imports gRPC and transformers)
    from rose.node.assembly import EngineOptions  # noqa: PLC0415

    follow = _following(weights, weights_token, weights_tls)
    chosen = EngineOptions(model, weights=follow, version=weight_version, **options)
    uvloop.run(serve_model(door, name, chosen))


def _following(
    address: str | None, token: Path | None, tls: tuple[Path, Path, Path] | None
) -> "Following | None":
    from rose.node.assembly import Following  # noqa: PLC0415
    from rose.transfer.wire.security import TlsFiles  # noqa: PLC0415

    if address is None:
        if token is not None or tls is not None:
            raise InvalidArgument("--weights-token and --weights-tls need --weights HOST:PORT")
        return None
    if token is None:
        raise InvalidArgument("--weights needs --weights-token, a file with the publisher's token")
    return Following(address, read_token(token), None if tls is None else TlsFiles(*tls))


def _refuse_options_of_models() -> None:
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        is_given = source is click.core.ParameterSource.COMMANDLINE
        if is_given and parameter.name not in _OF_ALL_ENGINES:
            raise InvalidArgument(f"the engine trial has no option {parameter.opts[0]}")
