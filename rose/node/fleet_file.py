"""The file of a fleet: one rollout service, and the engines that it starts or joins."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from rose.addresses import reachable
from rose.errors import InvalidArgument

_FILE_BYTES_MAX: Final = 1 << 20
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
ENGINE: Final = "engine"
SERVE: Final = "vllm-serve"
ROLLOUT: Final = "vllm-rollout"
# Fields that only some commands have.
_FIELDS_OF: Final[Mapping[str, frozenset[str]]] = {
    ENGINE: frozenset({"attach", "seats", "kv_tokens"}),
    SERVE: frozenset({"lend"}),
    ROLLOUT: frozenset({"attach"}),
}

Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Some = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class TlsPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files of a server.

    Args:
        certificate: its certificate.
        key: its private key.
        ca: authority that signs clients' certificates; None: clients need none.
    """

    certificate: Text
    key: Text
    ca: Text | None = None


class WeightsPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The publisher of the weights.

    Args:
        address: HOST:PORT.
        token_file: file with its token.
        certificate: this side's certificate, if the publisher is on another machine.
        key: private key of the certificate.
        ca: authority that signs the publisher's certificate.
    """

    address: Text
    token_file: Text
    certificate: Text | None = None
    key: Text | None = None
    ca: Text | None = None


class ServicePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rollout service.

    Args:
        listen: HOST:PORT.
        tls: PEM files; None: only this machine is admitted.
        token_file: file with the bearer token of clients; None: ROSE_TOKEN.
        tokenizer: folder of the tokenizer; None: the model's folder, if it is on this machine.
        model: name of the model in requests; None: the name at the engines.
        weights: publisher of new weights.
        sequences: most sequences in flight.
        max_staleness: most versions by which the weights of a turn may be behind the newest.
        logs: folder for the logs of the engines.
    """

    listen: Text = "127.0.0.1:8000"
    tls: TlsPart | None = None
    token_file: Text | None = None
    tokenizer: Text | None = None
    model: Text | None = None
    weights: WeightsPart | None = None
    sequences: Some = 4096
    max_staleness: Count | None = None
    logs: Text = "logs"


class EnginePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine: a URL to join, or a program to start.

    Args:
        url: URL of an engine that somebody else runs.
        token_file: with `url`: file with the engine's bearer token.
        ca: with `url`: authority of the engine's certificate; None: the system's authorities.
        name: name of the program, for its log.
        command: `engine`: an engine of transformers; `vllm-rollout`: a vLLM that borrows;
            `vllm-serve`: a vLLM that lends, and is no engine of the service.
        model: preset or folder of the model.
        attach: socket of the serving engine to borrow from.
        lend: socket at which a vLLM lends.
        listen: HOST:PORT of its HTTP server; replicas count up from the port. Port 0: a free port.
        seats: most sequences in a step.
        kv_tokens: capacity of its KV cache in tokens.
        replicas: number of such engines.
        python: interpreter of another environment.
        args: further options of its command.
        env: further environment variables.
    """

    url: Text | None = None
    token_file: Text | None = None
    ca: Text | None = None
    name: Name | None = None
    command: Literal["engine", "vllm-serve", "vllm-rollout"] = ENGINE
    model: Text | None = None
    attach: Text | None = None
    lend: Text | None = None
    listen: Text = "127.0.0.1:0"
    seats: Some | None = None
    kv_tokens: Some | None = None
    replicas: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    python: Text | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}

    def fields(self) -> set[str]:
        """Return the names of the fields that differ from their defaults."""
        default = EnginePart()
        names = self.__struct_fields__
        return {name for name in names if getattr(self, name) != getattr(default, name)}


class FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rollout service and its engines."""

    engines: Annotated[tuple[EnginePart, ...], msgspec.Meta(min_length=1)]
    service: ServicePart = ServicePart()


@dataclass(frozen=True, slots=True)
class Fleet:
    """A checked file.

    Args:
        file: content of the file.
        folder: folder that paths of the file are relative to.
    """

    file: FleetFile
    folder: Path

    def path(self, text: str) -> Path:
        """Return a path of the file."""
        return self.folder / Path(text).expanduser()


def read_fleet(path: Path) -> Fleet:
    """Read and check a file whole; nothing is started.

    Raises:
        InvalidArgument: the file cannot be read, or breaks rules; the message has all that it
            breaks, or the first one if a field is unknown or of another type.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from None
    if len(content) > _FILE_BYTES_MAX:
        raise InvalidArgument(f"{path} must have at most {_FILE_BYTES_MAX} bytes")
    try:
        file: FleetFile = msgspec.yaml.decode(content, type=FleetFile)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{path}: {' '.join(str(error).split())}") from error
    fleet = Fleet(file, path.resolve().parent)
    broken = list(_broken(fleet))
    if broken:
        raise InvalidArgument(f"{path}: {'; '.join(broken)}")
    return fleet


def _broken(fleet: Fleet) -> Iterator[str]:
    """Yield a sentence for each rule that a file breaks."""
    service = fleet.file.service
    for place, text in _files(fleet.file):
        if not fleet.path(text).exists():
            yield f"{place}: there is no file {fleet.path(text)}"
    for place, part in _places(fleet.file):
        yield from _broken_engine(place, part)
    names = Counter(part.name for part in fleet.file.engines if part.name is not None)
    yield from (
        f"name '{name}' is given to {count} engines" for name, count in names.items() if count > 1
    )
    addresses: Counter[tuple[str, int]] = Counter()
    for place, text, count, is_encrypted in _listeners(fleet.file):
        try:
            host, port = reachable(text, is_encrypted=is_encrypted)
        except InvalidArgument as error:
            yield f"{place}: {error}"
            continue
        if port + count > 1 << 16:
            yield f"{place}: {count} ports from {port} on must be below 65536"
        if port:
            addresses.update((host, port + at) for at in range(count))
    taken = [f"{host}:{port}" for (host, port), count in addresses.items() if count > 1]
    yield from (f"address {one} is taken twice" for one in taken)
    weights = service.weights
    if weights is not None:
        tls = weights.certificate, weights.key, weights.ca
        if None in tls and any(one is not None for one in tls):
            yield "service.weights: certificate, key and ca must be given together"


def _places(file: FleetFile) -> Iterator[tuple[str, EnginePart]]:
    for number, part in enumerate(file.engines):
        yield f"engines[{number}]", part


def _broken_engine(place: str, part: EnginePart) -> Iterator[str]:
    given = part.fields()
    if part.url is not None:
        surplus = sorted(given - {"url", "token_file", "ca"})
        if surplus:
            yield f"{place}: an engine with a url is not started, so it has no {', '.join(surplus)}"
        return
    missing = sorted({"name", "model"} - given)
    if missing:
        yield f"{place}: an engine needs a url, or else {' and '.join(missing)}"
    surplus = sorted(given & {"token_file", "ca"})
    surplus += sorted(given & frozenset().union(*_FIELDS_OF.values()) - _FIELDS_OF[part.command])
    if surplus:
        yield f"{place}: an engine with the command {part.command} has no {', '.join(surplus)}"
    needed = {SERVE: part.lend, ROLLOUT: part.attach}.get(part.command, "")
    if needed is None:
        socket = "lend" if part.command == SERVE else "attach"
        yield f"{place}: an engine with the command {part.command} needs {socket}, a socket"
    if part.replicas > 1 and part.lend is not None:
        yield f"{place}: two engines cannot lend at one socket, so replicas must be 1"


def _listeners(file: FleetFile) -> Iterator[tuple[str, str, int, bool]]:
    """Yield place, address, number of ports and openness of each server that is started.

    vLLM's serving engines are open to users, who come from anywhere. Other engines are reached from
    this machine only.
    """
    yield "service.listen", file.service.listen, 1, file.service.tls is not None
    for place, part in _places(file):
        if part.url is None:
            yield f"{place}.listen", part.listen, part.replicas, part.command == SERVE


def _files(file: FleetFile) -> Iterator[tuple[str, str]]:
    """Yield place and path of each file that must be there."""
    service = file.service
    found: dict[str, Any] = {
        "service.token_file": service.token_file,
        "service.tokenizer": service.tokenizer,
    }
    for name, struct in (("tls", service.tls), ("weights", service.weights)):
        for field in ("certificate", "key", "ca", "token_file"):
            found[f"service.{name}.{field}"] = getattr(struct, field, None)
    for place, part in _places(file):
        found[f"{place}.token_file"] = part.token_file
        found[f"{place}.ca"] = part.ca
        found[f"{place}.python"] = part.python
        if part.model is not None and "/" in part.model:  # Otherwise it is the name of a preset.
            found[f"{place}.model"] = part.model
    for place, text in found.items():
        if text is not None:
            yield place, text
