"""Options that `rose publish`, `rose relay` and `rose receive` share."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rose.cli.runs import ends_interrupt, read_named, write_output
from rose.clock import BootClock
from rose.config import quiet_grpc, read_environment
from rose.errors import InvalidArgument
from rose.transfer.observing.timeline import Timeline
from rose.transfer.publishing.shelf import Shelf
from rose.transfer.signing import Signing
from rose.transfer.wire.peers import Peers
from rose.transfer.wire.security import Security, TlsFiles

if TYPE_CHECKING:
    from rose.transfer.observing.metrics import Figures
    from rose.transfer.wire.server import WeightServer

PATH: Final = click.Path(path_type=Path)
_SECRET_BYTES_MAX: Final = 4096
_KEY_BYTES_MIN: Final = 16

upstreams_option = click.option(
    "--upstream",
    "upstreams",
    required=True,
    multiple=True,
    metavar="ADDRESS",
    help="Address of a publisher or relay. May be repeated.",
)
"""The option of the programs that have an upstream."""


class Events:
    """Prints events immediately. Thread-safe; the lock keeps lines whole.

    Args:
        is_json: whether each event is a line of JSON, with `time_ns` on CLOCK_BOOTTIME.
    """

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._clock = BootClock()
        self._lock = threading.Lock()
        self._troubles: dict[str, str | None] = {}  # latest problem of each subject

    def report(self, event: str, **fields: Any) -> None:
        """Print an event without the fields that are None."""
        shown = {name: value for name, value in fields.items() if value is not None}
        if self._is_json:
            line = json.dumps({"event": event, "time_ns": self._clock.now_ns(), **shown})
        else:
            line = " ".join([f"{event}:", *(f"{name}={value}" for name, value in shown.items())])
        with self._lock:
            click.echo(line)

    def trouble(self, sentence: str | None, *, about: str = "") -> None:
        """Print a problem, unless it equals the last problem of the same subject.

        Args:
            sentence: the problem; None if the problem is over, and then nothing is printed.
            about: subject of the problem; each subject has its own last problem.
        """
        with self._lock:
            is_news, self._troubles[about] = sentence != self._troubles.get(about), sentence
        if is_news and sentence is not None:
            self.report("trouble", reason=" ".join(sentence.split()))


@dataclass(frozen=True, slots=True)
class WeightOptions:
    """Options that all three programs have.

    Args:
        security: token, and certificates if given.
        signing: signing key of manifests; an empty key signs nothing.
        metrics: listening address for Prometheus; None for no metrics.
        timeline: file for a trace, written when the program ends; None for no trace.
        events: output of events.
    """

    security: Security
    signing: Signing
    metrics: str | None
    timeline: Path | None
    events: Events

    def serve(self, source: Shelf, listen: str, peers: Peers) -> "WeightServer":
        """Serve versions until the server is closed."""
        # Imported here, because `quiet_grpc` must run before gRPC is imported.
        from rose.transfer.wire.server import serve  # noqa: PLC0415

        return serve(
            source, listen, token=self.security.token.hex(), tls=self.security.tls, peers=peers
        )


def weight_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the command gets them as `options`, a `WeightOptions`."""

    @wraps(command)
    def run(
        *,
        token_file: Path | None,
        manifest_key_file: Path | None,
        tls: tuple[Path, Path, Path] | None,
        metrics: str | None,
        timeline: Path | None,
        as_json: bool,
        **others: Any,
    ) -> None:
        quiet_grpc()
        files = None if tls is None else TlsFiles(*tls)
        options = WeightOptions(
            security=Security.of(_token(token_file), files),
            signing=Signing(_manifest_key(manifest_key_file)),
            metrics=metrics,
            timeline=timeline,
            events=Events(is_json=as_json),
        )
        command(options=options, **others)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


_OPTIONS: Final = (
    click.option(
        "--token-file",
        type=PATH,
        metavar="FILE",
        help="File with the token, 64 hex digits. Default: ROSE_TOKEN.",
    ),
    click.option(
        "--manifest-key-file",
        type=PATH,
        metavar="FILE",
        help="File with the manifest key, 32 or more hex digits. Default: ROSE_MANIFEST_KEY.",
    ),
    click.option(
        "--tls",
        type=(PATH, PATH, PATH),
        default=None,
        metavar="CERTIFICATE KEY AUTHORITY",
        help="PEM files for mutual TLS, which is required between machines.",
    ),
    click.option("--metrics", metavar="ADDRESS", help="Serve Prometheus metrics at this address."),
    click.option(
        "--timeline", type=PATH, metavar="FILE", help="Write a trace for Perfetto at the end."
    ),
    click.option("--json", "as_json", is_flag=True, help="Report each event as a line of JSON."),
)


@contextmanager
def until_signal() -> Iterator[None]:
    """End the block without an error on SIGTERM or Ctrl-C."""
    with suppress(KeyboardInterrupt), ends_interrupt():
        yield


@contextmanager
def observed(
    options: WeightOptions, role: str, read: "Callable[[], Figures]", timeline: Timeline
) -> Iterator[Callable[[float], None]]:
    """Serve metrics and write the timeline, if requested.

    Yields:
        A function that records the duration of each pause, in seconds.
    """
    try:
        if options.metrics is None:
            yield _ignore
            return
        # Imported here, because it needs the extra `metrics`.
        from rose.transfer.observing.metrics import Metrics, MetricsServer  # noqa: PLC0415

        metrics = Metrics(role, read)
        with MetricsServer(metrics, options.metrics, options.security) as server:
            options.events.report("metrics", address=server.address)
            yield metrics.paused
    finally:
        if options.timeline is not None:
            write_output(options.timeline, timeline.as_json(), what="the timeline")


def _ignore(_seconds: float) -> None:
    pass


def _token(path: Path | None) -> str:
    token = read_environment().token if path is None else _secret(path)
    if token is None:
        raise InvalidArgument(
            "there is no token: set ROSE_TOKEN, or name a file with --token-file; "
            "`openssl rand -hex 32` makes a token"
        )
    return token


def _manifest_key(path: Path | None) -> bytes:
    text = read_environment().manifest_key if path is None else _secret(path)
    if text is None:
        return b""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < _KEY_BYTES_MIN:
        raise InvalidArgument(
            f"the manifest key must have at least {2 * _KEY_BYTES_MIN} hexadecimal digits"
        )
    return key


def _secret(path: Path) -> str:
    content = read_named(path, 1 << 20)
    try:
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(content) > _SECRET_BYTES_MAX:
        raise InvalidArgument(
            f"{path} must hold hexadecimal digits, in at most {_SECRET_BYTES_MAX} bytes"
        )
    return text
