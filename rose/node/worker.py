"""The program of a worker: `python -m rose.node.worker --help`.

With `--attach SOCKET` the worker is borrowed: it runs on the device of the serving engine that
listens at SOCKET.

The program ends when its stdin closes, so it never outlives its parent process. ROSE_TOKEN is the
token for the publisher of the worker's weights.
"""

import logging
import sys

from rose.clock import BootClock
from rose.config import read_environment
from rose.errors import RoseError
from rose.node.assembly import assemble
from rose.node.options import read_options
from rose.node.program import serve_until_stopped


def main() -> int:
    """Serve one worker; return the exit status."""
    options = read_options(sys.argv[1:])
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    token = read_environment().token or ""
    try:
        is_stopped = serve_until_stopped(
            lambda on_event: assemble(options, on_event, weights_token=token, clock=BootClock()),
            stdin=sys.stdin,
            stdout=sys.stdout,
        )
    except RoseError as error:
        sys.stderr.write(f"rose.node.worker: {error}\n")
        return 1
    return 0 if is_stopped else 1


if __name__ == "__main__":
    sys.exit(main())
