"""A tenant in a real process of its own: the parent's handle, and what the child does.

The child executes one expression at a time, with `tenant` (its Attachment), `blocks` (its
allocator) and `held` (a list to keep ids in), and answers with its value as JSON. So a test says
beside the arbiter's part what the tenant does, and can stop it anywhere.
"""

import array
import json
import os
import signal
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any

from typing_extensions import Self

from rose._core import Arbiter, Attachment, PoolExport, Process, Tenant
from rose.errors import RoseError

BLOCK_BYTES = 1024
_ANSWER_S = 60.0  # bounds a hang, no more


class TenantProcess:
    """A child process attached to a partition.

    Args:
        arbiter: of the partition.
        partition: without an allocator; header slab 1 is its own.
        kill_late: whether a missed deadline costs it its process.
    """

    def __init__(self, arbiter: Arbiter, partition: int, *, kill_late: bool = True) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = [sys.executable, "-m", "tests.memory.tenant_process", str(theirs.fileno())]
        self.partition = partition
        self.child = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
        theirs.close()
        self.socket = ours
        ours.settimeout(_ANSWER_S)
        self.process = Process.open(self.child.pid)
        self.tenant: Tenant = arbiter.add_tenant(partition, self.process, kill_late=kill_late)
        pool, ledger_fd = arbiter.share_pool(), arbiter.share_ledger()
        tenant_fds = [self.tenant.mailbox_fd, self.tenant.to_arbiter_fd, self.tenant.to_tenant_fd]
        numbers = {
            "sizes": pool.sizes,
            "slab_bytes": pool.slab_bytes,
            "slab_count": pool.slab_count,
            "header_slabs": pool.header_slabs,
            "is_on_host": pool.is_on_host,
        }
        self._send(numbers, [*pool.fds, ledger_fd, *tenant_fds])
        os.close(ledger_fd)
        self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self.tenant.close()
        self.socket.close()

    def _send(self, message: object, fds: list[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([json.dumps(message).encode() + b"\n"], rights)

    def answer(self) -> Any:
        """Return what the child said last."""
        said = b""
        while not said.endswith(b"\n"):
            part = self.socket.recv(65536)
            if not part:
                raise EOFError("the tenant is gone")
            said += part
        answer = json.loads(said)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def do(self, expression: str, fds: tuple[int, ...] = ()) -> Any:
        """Return what the expression is in the child; descriptors arrive there as `fds`."""
        self.begin(expression, fds)
        return self.answer()

    def begin(self, expression: str, fds: tuple[int, ...] = ()) -> None:
        """Let the child do it without waiting for its answer."""
        self._send(expression, list(fds))

    def stop(self) -> None:
        """Freeze every thread of the child."""
        os.kill(self.child.pid, signal.SIGSTOP)
        os.waitpid(self.child.pid, os.WUNTRACED)

    def go_on(self) -> None:
        """Thaw it."""
        os.kill(self.child.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as the kernel would, and collect it."""
        self.child.kill()
        self.child.wait(_ANSWER_S)


def _receive(connection: socket.socket) -> tuple[Any, list[int]]:
    said, fds = b"", array.array("i")
    while not said.endswith(b"\n"):
        part, ancillary, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(253 * fds.itemsize))
        if not part:
            sys.exit(0)
        said += part
        for _, _, data in ancillary:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return json.loads(said), list(fds)


def attach(connection: socket.socket) -> Attachment:
    """Return the tenant's end, from what the arbiter's process sends."""
    numbers, fds = _receive(connection)
    *objects, ledger, mailbox, to_arbiter, to_tenant = fds
    tenant = Attachment.create(
        pool=PoolExport(objects, **numbers),
        ledger_fd=ledger,
        mailbox_fd=mailbox,
        to_arbiter_fd=to_arbiter,
        to_tenant_fd=to_tenant,
        socket_fd=connection.fileno(),
    )
    for fd in fds:
        os.close(fd)
    return tenant


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    tenant = attach(connection)
    blocks = tenant.allocator(
        tenant.partition, block_bytes=BLOCK_BYTES, origin_bytes=tenant.slab_bytes
    )
    names: dict[str, Any] = {"tenant": tenant, "blocks": blocks, "held": [], "os": os}
    value: object = os.getpid()
    while True:
        connection.sendall(json.dumps({"value": value}).encode() + b"\n")
        while True:
            expression, names["fds"] = _receive(connection)
            try:
                value = eval(expression, names)
                break
            except (OSError, RoseError) as error:
                told = {"error": f"{type(error).__name__}: {error}"}
                connection.sendall(json.dumps(told).encode() + b"\n")


if __name__ == "__main__":
    main()
