"""Serving without an engine, in a process of its own that may be stopped and killed.

It listens at a socket until its stdin ends: a borrower attaches there.
"""

import json
import sys

from rose.executor import SLO, CoServing, Policy
from tests.executor.conftest import HEADERS, SERVING_KV, SLAB, SLABS
from tests.known_model import confirm


def main() -> None:
    path, knobs = sys.argv[1], json.loads(sys.argv[2])
    isolation = knobs.pop("isolation", "shared")
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
        confirm(device._model, 32)
        device.listen(path)
        sys.stdout.write('"ready"\n')
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
