"""The program of a porter: a mover, bounce memory, and no secret of rose's.

It is told what to do in messages of JSON over a socket that it inherits. It ends with its parent,
however that goes: the kernel kills it when the other end of a pipe is closed, also in the middle of
a call of the library.

    to it:   {"mover", "module", "nbytes", "fd", "join": null or [pid, network]}; then
             {"read": [peer, at, nbytes]} or {"serve": whether others read}
    from it: an introduction, or {"failed": sentence}; then {"came": whether} for each read
"""

import fcntl
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from rose.errors import RoseError, check
from rose.transfer.movers import mooncake, nixl
from rose.transfer.movers.bounce import Bounce
from rose.transfer.movers.introduction import Introduction
from rose.transfer.movers.kinds import MOONCAKE, NIXL
from rose.transfer.movers.mover import Mover
from rose.transfer.movers.private_network import check_is_private, join_network, make_network

MESSAGE_BYTES_MAX: Final = 1 << 17
_KINDS: Final[Mapping[str, Callable[[str, Bounce], Mover]]] = {
    MOONCAKE: mooncake.MooncakeMover,
    NIXL: nixl.NixlMover,
}
ENVIRONMENTS: Final = {MOONCAKE: mooncake.ENVIRONMENT, NIXL: nixl.ENVIRONMENT}


class Porter:
    """Does what it is told, in one thread.

    Args:
        wire: to whoever started it.
        mover: the library.
    """

    def __init__(self, wire: socket.socket, mover: Mover) -> None:
        self._wire = wire
        self._mover = mover
        self._is_serving = False

    def run(self) -> None:
        """Work until the other side hangs up."""
        while True:
            poll_s = self._mover.poll_s if self._is_serving else None
            if not select.select([self._wire], [], [], poll_s)[0]:
                self._mover.progress()
                continue
            content = self._wire.recv(MESSAGE_BYTES_MAX)
            if not content:
                return
            self._do(json.loads(content))

    def _do(self, told: dict[str, Any]) -> None:
        if "serve" in told:
            self._is_serving = told["serve"]
            return
        peer, at, nbytes = told["read"]
        came = self._mover.read(peer, at, nbytes)
        self._wire.send(json.dumps({"came": came}).encode())


def start(wire: socket.socket, told: dict[str, Any]) -> Porter:
    """Enter the network, load the library, and introduce ourselves.

    Raises:
        Unavailable: there is no such network, or the library cannot be used.
    """
    join = told["join"]
    network = make_network() if join is None else join_network(*join)
    check_is_private()
    bounce = Bounce(told["nbytes"], told["fd"])
    mover = _KINDS[told["mover"]](told["module"], bounce)
    wire.send(Introduction(os.getpid(), network, bounce.address, mover.peer).to_json())
    return Porter(wire, mover)


def end_with(lifeline: int) -> bool:
    """Have the kernel end this process when a pipe has no writer left; return whether it has one.

    Of a pipe that is told to, a close is a signal, and SIGIO ends whoever does not handle it.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        os.read(lifeline, 1)
    except BlockingIOError:
        return True
    return False  # nobody ever writes: it was closed before


def main() -> None:
    """Run a porter; the arguments are the descriptors of its socket and of its lifeline."""
    if not end_with(int(sys.argv[2])):
        return
    with socket.socket(fileno=int(sys.argv[1])) as wire:
        content = wire.recv(MESSAGE_BYTES_MAX)
        check(content, "a porter is told what to do first")
        try:
            porter = start(wire, json.loads(content))
        except RoseError as error:
            wire.send(json.dumps({"failed": str(error)}).encode())
            return
        porter.run()


if __name__ == "__main__":
    main()
