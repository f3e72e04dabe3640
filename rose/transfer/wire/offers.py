"""Chunks by a mover, from the side that has them: control says where they lie, a porter has them.

One method from stream to stream. The first message names the mover and is answered with who its
porter is; then come asks as those of `Chunks`, each answered with an offer. The offer before the
last one may still be read. Bytes: `docs/protocol.md`, "Weights between processes".
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import grpc

from rose.clock import BootClock, Clock
from rose.errors import CorruptData, RoseError, sentence
from rose.transfer.relaying.upstream import Served
from rose.transfer.wire.asking import read_ask
from rose.transfer.wire.berths import BERTHS, HALVES, Berth, Berths
from rose.transfer.wire.calls import Calls
from rose.transfer.wire.messages import SERVICE

METHOD: Final = f"/{SERVICE}/Offers"


def offers_handler(served: Served, movers: Mapping[str, Berths], clock: Clock | None = None) -> Any:
    """Return what answers `METHOD` on a gRPC server, for whoever showed the token.

    Args:
        served: has the chunks.
        movers: that are offered, by name.
        clock: says which call takes too long.
    """
    calls = Calls(BootClock() if clock is None else clock, BERTHS)

    def answer(asks: Iterator[bytes], context: Any) -> Iterator[bytes]:
        if not calls.begin(context):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "")
        berths = movers.get(next(asks, b"").decode(errors="replace"))
        if berths is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "")
            return
        try:
            with berths.taken() as berth:
                yield from _offers(berth, served, asks)
        except CorruptData:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "")
        except RoseError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, sentence(error))

    return grpc.stream_stream_rpc_method_handler(answer)


def _offers(berth: Berth, served: Served, asks: Iterator[bytes]) -> Iterator[bytes]:
    yield berth.introduction.to_json()
    for index, ask in enumerate(asks):
        key, tiles = read_ask(ask)
        yield berth.lay_out(index % HALVES, served, key, tiles)
