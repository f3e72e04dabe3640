"""A borrower without an engine, in a process of its own: does what lines of its stdin say.

Each line is a JSON list, a command and its arguments; each is answered by one line of JSON.
"""

import json
import sys
import threading

from rose.errors import RoseError, StepAborted
from rose.executor import CoServing, KVGeometry, Quantum


class Tenant:
    def __init__(self, path: str, *, limit_bytes: int, block_tokens: int, bytes_per_token: int):
        self.device = CoServing.attach(path)
        geometry = KVGeometry(layers=1, block_tokens=block_tokens, bytes_per_token=bytes_per_token)
        self.lane = self.device.rollout(geometry, limit_bytes=limit_bytes)
        self.lane.on_revoke = self.on_revoke
        self.held: list[int] = []
        self.obeys = True
        self.demands = 0
        self.lock = threading.Lock()  # Guards `held`.
        self.step: threading.Thread | None = None
        self.in_segment = threading.Event()
        self.may_go_on = threading.Event()
        self.outcome = ""

    def on_revoke(self, demand) -> None:
        self.demands += 1
        demand.begin(())
        if self.obeys:
            self.evacuate()

    def evacuate(self) -> None:
        leaving = self.lane.leaving()
        allocator = self.lane.kv.allocator
        with self.lock:
            gone = [block for block in self.held if allocator.slab_of(block) in leaving]
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

    def disobey(self) -> None:
        self.obeys = False

    def fill(self, value: int) -> None:
        size = self.lane.kv.geometry.block_bytes
        flat = self.lane.kv.flat()
        for block in self.held:
            flat[block * size : (block + 1) * size] = value

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
