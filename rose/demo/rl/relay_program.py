"""The relay's own process: `python -m rose.demo.rl.relay_program`.

It stands between the trainer and the workers, so that a change leaves the trainer's machine once,
however many workers there are, and workers that come back find it though the trainer is away.

The first line of its standard input is the token of both sides. It prints one line of JSON when it
is ready, `{"address": HOST:PORT}`, then lines of JSON on its standard error that say what it moved,
and ends when its standard input closes or on SIGTERM.
"""

import argparse
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, TextIO

from rose.demo.rl.parent import heed_signals, input_has_ended
from rose.errors import RoseError
from rose.node.cores import cores_of, take_cores, yield_to_others
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.relaying.follower import Follower
from rose.transfer.relaying.relay import Relay
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve

# The trainer comes back within seconds, and its versions seconds apart.
_BACKOFF_MAX_S: Final = 0.5


def main(arguments: Sequence[str]) -> int:
    """Run the relay until it is told to stop; return the exit status."""
    options = _parser().parse_args(arguments)
    token = sys.stdin.readline().strip()
    stop = heed_signals()
    try:
        take_cores(options.cores)
        if options.background:
            yield_to_others()
        _relay(options, token, stop)
    except RoseError as error:
        sys.stderr.write(f"the relay ends: {error}\n")
        return 1
    return 0


def _relay(options: argparse.Namespace, token: str, stop: threading.Event) -> None:
    with ExitStack() as parts:
        sources = [RemoteSource(options.upstream, token) for _ in range(2)]
        relay = Relay(sources[0], store=MemoryStore(), reader=sources[1])
        server = parts.enter_context(serve(relay, options.weights_address, token=token))
        parts.enter_context(Follower(relay, backoff_max_s=_BACKOFF_MAX_S))
        for source in sources:
            parts.callback(source.close)  # First: it breaks off what is waited for.
        _say(sys.stdout, {"address": server.address})
        last: Mapping[str, int] = {}
        while not stop.is_set() and not input_has_ended():
            last = _tell(relay, last)
        _tell(relay, last)


def _tell(relay: Relay, last: Mapping[str, int]) -> Mapping[str, int]:
    """Say what was moved so far, if that is another than was said last."""
    figures = relay.statistics()
    moved = {"crossing_bytes": figures.crossing_bytes, "sent_bytes": figures.sent_bytes}
    if moved != last:
        _say(sys.stderr, moved)
    return moved


def _say(to: TextIO, message: Mapping[str, object]) -> None:
    to.write(json.dumps(message) + "\n")
    to.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rose.demo.rl.relay_program", description=__doc__)
    option: Callable[..., argparse.Action] = parser.add_argument
    option("--upstream", required=True, help="where the trainer's weights are, HOST:PORT")
    option("--weights-address", default="127.0.0.1:0", help="where receivers of weights ask")
    option("--background", action="store_true", help="run in time that nobody else wants")
    option("--cores", type=cores_of, default=frozenset(), help="to run on, as in 0,1")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
