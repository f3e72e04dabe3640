"""A borrower without an engine, in a process of its own: does what lines of its stdin say.

Each line is a JSON list, a command and its arguments; each is answered by one line of JSON.
"""

import ctypes
import gc
import json
import subprocess
import sys
import threading
from pathlib import Path

from rose.api.borrower import Borrower
from rose.errors import RoseError, StepAborted
from rose.executor import CoServing, KVGeometry, Notice, Quantum


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Tenant:
    def __init__(
        self, path: str, *, limit_bytes: int, block_tokens: int, bytes_per_token: int
    ) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.geometry = KVGeometry(1, block_tokens, bytes_per_token)
        self.demands = 0
        self.lock = threading.Lock()  # Guards `held`.
        self.step: threading.Thread | None = None
        self.in_segment = threading.Event()
        self.may_go_on = threading.Event()
        self.outcome = ""
        self.descriptors = descriptors()
        self.attach()

    def attach(self) -> None:
        self.device = CoServing.attach(self.path)
        self.lane = self.device.rollout(self.geometry, limit_bytes=self.limit_bytes)
        self.lane.on_revoke = self.on_revoke
        self.held: list[int] = []

    def on_revoke(self, _notice: Notice) -> None:
        self.demands += 1
        self.evacuate()

    def evacuate(self) -> None:
        leaving = self.lane.leaving()
        allocator = self.lane.kv.allocator
        with self.lock:
            slabs = allocator.slabs_of(self.held)
            found = zip(self.held, slabs, strict=True)
            gone = [block for block, slab in found if slab in leaving]
            self.held = [block for block in self.held if block not in gone]
            allocator.free(gone)

    # ---- commands

    def borrow(self, blocks: int) -> int:
        """Borrow memory for blocks, and take them."""
        if not self.lane.ensure(blocks):
            return 0
        with self.lock:
            self.held += self.lane.kv.allocator.alloc(blocks)
        return len(self.held)

    def give(self) -> int:
        with self.lock:
            self.lane.kv.allocator.free(self.held)
            self.held = []
        return self.lane.kv.allocator.free_blocks

    def lent(self) -> list[int]:
        return self.lane.slabs()

    def rank(self, slabs: list[int]) -> None:
        with self.lane.planning() as plan:
            plan.order = slabs

    def fill(self, value: int) -> None:
        size = self.lane.kv.geometry.block_bytes
        flat = self.lane.kv.flat()
        for block in self.held:
            flat[block * size : (block + 1) * size] = value

    def content(self) -> list[int]:
        """Which bytes there are in the blocks that it holds."""
        size = self.lane.kv.geometry.block_bytes
        flat = self.lane.kv.flat()
        return sorted({int(one) for at in self.held for one in flat[at * size : (at + 1) * size]})

    def slabs(self) -> list[int]:
        return sorted(set(self.lane.kv.allocator.slabs_of(self.held)))

    def touch(self, slab: int) -> int:
        """Read a byte of any slab, whoever has it."""
        arbiter = self.lane.kv.arbiter
        at = (arbiter.header_slabs + slab) * arbiter.slab_bytes - self.lane.kv.origin_bytes
        return int(self.lane.kv.flat()[at])

    def mapped(self) -> int:
        """How many memory objects of a pool are mapped here."""
        maps = Path("/proc/self/maps").read_text().splitlines()
        return len({line.split()[4] for line in maps if "memfd:rose-pool" in line})

    def start_helper(self) -> int:
        """Start a process that does nothing, for ever; its number."""
        nap = [sys.executable, "-c", "import threading; threading.Event().wait()"]
        return subprocess.Popen(nap, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid

    def let_go(self) -> list[int]:
        """Close the device and forget it; what is left: memory objects, and more descriptors."""
        self.device.close()
        self.device = self.lane = self.step = None
        gc.collect()
        return [self.mapped(), descriptors() - self.descriptors]

    def begin_step(self) -> bool:
        """Start a step that pins all blocks and stays in its first segment."""
        self.in_segment.clear()
        self.may_go_on.clear()
        self.step = threading.Thread(target=self.run_step, daemon=True)
        self.step.start()
        return self.in_segment.wait(30)

    def run_step(self) -> None:
        while not isinstance(quantum := self.lane.try_step(timeout_ms=100), Quantum):
            pass
        with quantum:
            pin = self.lane.pin(self.held)
            try:
                self.in_segment.set()
                self.may_go_on.wait(30)
                while True:
                    self.lane.gate()
            except StepAborted:
                self.outcome = "aborted"
            except RoseError as error:
                self.outcome = str(error)
            finally:
                self.lane.unpin(pin)
                self.evacuate()

    def go_on(self) -> None:
        self.may_go_on.set()

    def end_step(self) -> str:
        self.step.join(200)
        return self.outcome

    def generate(self, prompt: int, tokens: int, host_s: float) -> dict:
        """Generate tokens; after each forward pass the host works, and keeps the GIL."""
        borrower, computed = Borrower(self.lane), []
        with borrower.sequence() as one:
            one.grow(prompt)
            for _ in range(tokens):
                for step in borrower.steps([one]):
                    with step:
                        step.gate()
                        step.finish()
                        ctypes.PyDLL(None).usleep(int(host_s * 1e6))
                    if step.is_done:
                        computed.append(step.tokens[one])
                one.grow(1)
        return {"computed": computed, "gave_back": self.device.gave_back}

    def credit(self) -> dict:
        gate = self.lane._gate
        return {"passed": gate.passed, "left": gate.credit_left}

    def state(self) -> dict:
        return {
            "held": len(self.held),
            "free": self.lane.kv.allocator.free_blocks,
            "demands": self.demands,
            "slabs": len(self.lane.slabs()),
            "is_closed": self.lane.is_closed,
            "gave_back": self.device.gave_back,
        }

    def close(self) -> None:
        self.device.close()


def main() -> None:
    tenant = Tenant(sys.argv[1], **json.loads(sys.argv[2]))
    sys.stdout.write('"ready"\n')
    sys.stdout.flush()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answer = getattr(tenant, command)(*arguments)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
