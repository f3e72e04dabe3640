"""Serving without an engine, in a process of its own that may be stopped and killed.

It listens at a socket until its stdin ends: a borrower attaches there. Each line of its stdin is a
number of slabs to take back, and it stops itself when they are asked for, before it goes on.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rose.executor import SLO, CoServing, Policy
from rose.executor.revocation import Revocation
from rose.memory import Isolation
from tests.executor.conftest import HEADERS, SERVING_KV, SLAB, SLABS
from tests.known_model import confirm


def take_back_and_stop(device: CoServing, slabs: int) -> None:
    borrower = device.lender.newest
    stock = borrower.revoke

    def revoke(revocation: Revocation) -> None:
        stock(revocation)
        os.kill(os.getpid(), signal.SIGSTOP)

    borrower.revoke = revoke
    device.lender.take_back(slabs)
    borrower.revoke = stock


@contextmanager
def listening(path: str | Path, *, isolation: Isolation = "shared", **knobs) -> Iterator[CoServing]:
    """A device that lends to borrowers that attach at `path`, one after another."""
    with CoServing.open(
        "cpu",
        pool_bytes=(SLABS + HEADERS) * SLAB,
        slab_bytes=SLAB,
        isolation=isolation,
        policy=Policy(**knobs),
    ) as device:
        device.serving(
            SERVING_KV,
            slo=SLO(ttft_ms=20_000, tpot_ms=1000),
            reserve_bytes=SLAB,
            step_tokens=32,
            request_tokens=64,
        )
        confirm(device._parts.model, 32)
        device.listen(path)
        yield device


def main() -> None:
    with listening(sys.argv[1], **json.loads(sys.argv[2])) as device:
        sys.stdout.write('"ready"\n')
        sys.stdout.flush()
        for line in sys.stdin:
            take_back_and_stop(device, int(line))


if __name__ == "__main__":
    main()
