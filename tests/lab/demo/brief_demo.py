"""`rose`, with less before the first round of the demo: its numbers are not looked at.

The programs that it starts are forks of this process, which `tests/warm.py` forked.
"""

import os
import signal
import socket
import subprocess
import threading
from functools import partial
from types import SimpleNamespace

from rose.cli.main import main
from rose_lab.demo import experiment
from rose_lab.demo.rl import supervisor
from tests.warm import Nursery, WarmPopen, serve

experiment._CALIBRATION_S, experiment._WARM_UP_S = 1.0, 0.5


class Forked(Nursery):
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        if os.fork() == 0:
            self._socket.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            serve(theirs)
            os._exit(0)
        theirs.close()


if __name__ == "__main__":
    supervisor.subprocess = SimpleNamespace(
        Popen=partial(WarmPopen, Forked()), PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT
    )
    raise SystemExit(main())
