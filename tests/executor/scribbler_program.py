"""A borrower that writes random bytes into everything that it shares with serving, until it ends.

Arguments: the device's socket, a seed, and how many seconds it writes.
"""

import mmap
import os
import random
import sys
import time

from rose.executor.channel import Channel
from rose.executor.messages import AskGrow, Granted, Hello, Welcome
from tests.executor.conftest import ROLLOUT_KV, SLAB, SLABS

_HEAD_BYTES = 128  # the part of a page whose words the other side uses
_BURST_BYTES = 64


def admitted(path: str) -> tuple[Channel, Welcome, list[int]]:
    """Attach as soon as the device lets another borrower in."""
    while True:
        channel = Channel.connect(path, timeout_s=30)
        channel.send(Hello(ROLLOUT_KV, SLABS * SLAB))
        answer, descriptors = channel.receive(timeout_s=60)
        if isinstance(answer, Welcome):
            return channel, answer, descriptors
        channel.close()
        time.sleep(0.05)


def borrowed(channel: Channel) -> list[int]:
    """Borrow four slabs. After a revocation of the previous borrower's slabs this takes a while."""
    while True:
        channel.send(AskGrow(4 * 8))
        answer, slabs = channel.receive(timeout_s=60)
        if isinstance(answer, Granted):
            return slabs
        time.sleep(0.05)


def main(path: str, seed: int, write_s: float) -> None:
    chance = random.Random(seed)
    channel, welcome, descriptors = admitted(path)
    pages = []
    for name, fd in zip(welcome.descriptors, descriptors, strict=True):
        if name == "ledger":
            try:
                mmap.mmap(fd, os.fstat(fd).st_size)
            except PermissionError:
                continue
            raise AssertionError("a borrower can write into the ledger")
        if os.fstat(fd).st_size > 0:  # not a bell
            pages.append(mmap.mmap(fd, os.fstat(fd).st_size))
    pages += [mmap.mmap(fd, SLAB) for fd in borrowed(channel)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    end_s = time.monotonic() + write_s
    while time.monotonic() < end_s:
        for page in pages:
            reach = _HEAD_BYTES if chance.random() < 0.5 else len(page)
            size = chance.randint(1, min(_BURST_BYTES, reach))
            at = chance.randrange(reach - size + 1)
            page[at : at + size] = chance.randbytes(size)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
