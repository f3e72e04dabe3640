"""Makes one connection of each kind to a program at the other end of a link, at the first attempt.

Arguments: address of a publisher, address of a part server, token, and the three files of TLS.
"""

import sys
from contextlib import closing
from pathlib import Path

import numpy as np

import rose
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.relaying.relay import Relay
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.remote_part import RemotePart
from rose.transfer.wire.security import TlsFiles
from tests.transfer.worker import LONG_S, TILES


def main() -> None:
    publisher, part, token, *paths = sys.argv[1:]
    files = (paths[0], paths[1], paths[2])
    tls = TlsFiles(*map(Path, files))
    weights = {"w": np.zeros(1000, np.float32)}
    with rose.receive(weights, publisher, token=token, tls=files) as receiver:
        receiver.wait(LONG_S)
        print("receiver", receiver.commit(), weights["w"][0])
    with closing(RemoteSource(publisher, token, tls=tls)) as source:
        relay = Relay(source, store=MemoryStore())
        relay.round(LONG_S)
        print("relay", relay.newest_n)
    with RemotePart(part, token, TILES, "first", tls=tls) as remote:
        print("part", len(remote.owned) == len(TILES))


if __name__ == "__main__":
    main()
