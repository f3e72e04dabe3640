"""Commands that start the engines of a fleet file on this machine."""

import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rose.addresses import reachable, spelled
from rose.node.fleet_file import ENGINE, SERVE, CheckedFleet, EnginePart


@dataclass(frozen=True, slots=True)
class Command:
    """How to start one program, and where it listens.

    Args:
        name: name of the program, for its log.
        words: the command line; it holds no secret, because every user can read it.
        environment: further environment variables.
        url: URL of its HTTP server; None: it is no engine of the service.
    """

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    url: str | None


def commands_of(fleet: CheckedFleet, token: str) -> Iterator[Command]:
    """Yield the commands of all engines that a fleet starts.

    Args:
        fleet: checked file.
        token: bearer token that the engines shall require.
    """
    for part in fleet.file.engines:
        if part.url is not None:
            continue
        for replica in range(part.replicas):
            yield _command(fleet, part, replica, token)


def _command(fleet: CheckedFleet, part: EnginePart, replica: int, token: str) -> Command:
    host, port = _place(part.listen, replica)
    name = str(part.name) if part.replicas == 1 else f"{part.name}-{replica}"
    python = sys.executable if part.python is None else str(fleet.path(part.python))
    rose = (python, "-m", "rose.cli.main")
    model = str(part.model)
    if "/" in model:
        model = str(fleet.path(model))
    served = ("--host", host, "--port", str(port))
    secret = "ROSE_TOKEN"
    match part.command:
        case "engine":
            words = (*rose, ENGINE, model, "--listen", spelled(host, port), *_options(fleet, part))
        case "vllm-serve":
            lend = str(fleet.path(str(part.lend)))
            words = (*rose, "vllm", "serve", model, "--listen", lend, *served)
        case _:
            attach = str(fleet.path(str(part.attach)))
            words = (*rose, "vllm", "rollout", model, "--attach", attach, *served)
            secret = "VLLM_API_KEY"
    is_joined = part.command != SERVE
    return Command(
        name,
        (*words, *part.args),
        {**part.env, **({secret: token} if is_joined else {})},
        f"http://{spelled(host, port)}" if is_joined else None,
    )


def _options(fleet: CheckedFleet, part: EnginePart) -> Iterator[str]:
    """Yield the options of `rose engine`."""
    if part.attach is not None:
        yield from ("--attach", str(fleet.path(part.attach)))
    for option, count in (("--seats", part.seats), ("--kv-tokens", part.kv_tokens)):
        if count is not None:
            yield from (option, str(count))
    weights = fleet.file.service.weights
    if weights is not None and part.model != "trial":
        yield from ("--weights", weights.address)
        yield from ("--weights-token", str(fleet.path(weights.token_file)))
        tls = [one for one in (weights.certificate, weights.key, weights.ca) if one is not None]
        if tls:
            yield from ("--weights-tls", *(str(fleet.path(one)) for one in tls))


def _place(address: str, replica: int) -> tuple[str, int]:
    """Return host and port of a replica. A free port stays free only until somebody takes it."""
    host, port = reachable(address, is_encrypted=True)  # The file's check has refused others.
    if port:
        return host, port + replica
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return host, int(probe.getsockname()[1])
