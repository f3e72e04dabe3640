"""A trainer's process for tests: serves versions until it is killed or its standard input closes.

Arguments: the address, the token, the incarnation, the first version, the seed of its weights.
It prints its address, and after each line on its standard input publishes a version and prints n.
"""

import sys

from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.wire.server import serve
from tests.transfer.worker import TILE, changed, weights


def main() -> None:
    address, token, incarnation, first, seed = sys.argv[1:]
    log = VersionLog()
    bits = weights(int(seed))
    publisher = RowPublisher(bits, "run", int(incarnation), int(first), log, tile_elements=TILE)
    with serve(log, address, token=token) as server:
        print(server.address, flush=True)
        for _ in sys.stdin:
            bits = changed(bits, publisher.version.n)
            publisher.publish(bits)
            print(publisher.version.n, flush=True)


if __name__ == "__main__":
    main()
