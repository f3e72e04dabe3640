"""A program whose main thread ends while a daemon thread of its serving engine lends."""

import math
import sys
import threading
from pathlib import Path

from rose.executor import StepBatch
from tests.executor.conftest import Rig
from tests.waiting import wait_for

DECODE = StepBatch(decode_sequences=1, context_tokens=8, prefill_tokens=0, requests=("a",))


def main(log_path: Path) -> None:
    rig = Rig(
        log_path,
        slowdown=math.inf,
        latency_prior_ms=(1.0, 0.0, 0.0, 0.0, 0.0),
        tpot_ms=1e6,
        blocking_ms=1e6,
        heartbeat_ttl_ms=1e5,
    )

    def segments() -> None:
        while True:
            threading.Event().wait(0.005)
            rig.rollout.gate()

    threading.Thread(target=lambda: rig.step_once(segments), daemon=True).start()
    wait_for(lambda: rig.device.gate.passed > 0)
    rig.serving.arrived("a", prompt_tokens=8)
    with rig.serving.step():
        rig.serving.emitted("a")
    serving = threading.Thread(target=rig.serving.step(DECODE).__enter__, daemon=True)
    serving.start()
    # On a busy machine the loan may be over before anybody looks.
    wait_for(lambda: rig.device.gate.is_open() or not serving.is_alive())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
