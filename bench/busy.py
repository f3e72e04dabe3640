"""Work of a known length that keeps a core busy and releases the interpreter."""

import hashlib
import time
from collections.abc import Callable

_PROBE_BYTES = 1 << 20
_PROBES = 9


def busy_work(length_ms: float) -> Callable[[], None]:
    """Return work that takes about `length_ms` on a free core.

    It hashes a large buffer, which releases the GIL as an engine's kernels do.
    """
    probe = bytes(_PROBE_BYTES)
    times_ns = []
    for _ in range(_PROBES):
        began_ns = time.perf_counter_ns()
        hashlib.sha256(probe)
        times_ns.append(time.perf_counter_ns() - began_ns)
    content = bytes(int(_PROBE_BYTES * length_ms * 1e6 / min(times_ns)))

    def work() -> None:
        hashlib.sha256(content)

    return work
