"""The same trace on real threads: a borrower, a creditor and serving meet at a real `HostGate`.

A conductor owns the clock. It moves it to the next time at which somebody wants to be woken, and
only when nobody has anything left to do now; so real threads, with real waits at a real gate, give
one log. The threads call the core themselves, and share no code with `CoreGovernor`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from rose._core import (
    HostGate,
    ManualClock,
    ServingState,
    Verdict,
)
from rose.executor.certified import certificate_log, certified_creditor
from rose.slo import SLO, Policy
from rose.slo.latency_file import new_latency_model
from rose_lab.sim import DeviceModel, Request
from rose_lab.sim.core import NO_MEMORY, SimulatedProber
from rose_lab.sim.engine import ServingEngine

NS_PER_MS = 1_000_000
DEADLINE_S = 120.0
LOOK_S = 0.0005


class Stage:
    """Where threads meet: the clock, who sleeps until when, and who is waiting for what."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changed = threading.Condition()
        self.is_over = False
        # Until when each thread sleeps; and what each of the others waits for.
        self.sleepers: dict[str, int] = {}
        self.waits: dict[str, Callable[[], bool]] = {}

    def sleep_until(self, name: str, wake_ns: int) -> None:
        with self.changed:
            self.sleepers[name] = wake_ns
        self.wait(name, lambda: self.clock.now_ns() >= wake_ns)
        with self.changed:
            del self.sleepers[name]

    def wait(self, name: str, is_time: Callable[[], bool]) -> None:
        """Wait until `is_time`, or until all is over."""
        give_up_s = time.monotonic() + DEADLINE_S
        with self.changed:
            self.waits[name] = is_time
            while not (is_time() or self.is_over):
                assert time.monotonic() < give_up_s, f"{name} waits for ever"
                self.changed.wait(LOOK_S)
            del self.waits[name]

    def is_quiet(self, names: Sequence[str]) -> bool:
        """Whether each of these threads waits for something that has not come."""
        with self.changed:
            return all(name in self.waits and not self.waits[name]() for name in names)

    def end(self) -> None:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()


class Rig:
    """The core's objects, and the threads that use them."""

    def __init__(
        self, requests: Sequence[Request], device: DeviceModel, slo: SLO, policy: Policy, path: Path
    ) -> None:
        assert (device.signal_ms, device.noise) == (0, 0)
        self.stage = Stage()
        clock = self.stage.clock
        self.requests, self.device, self.policy = requests, device, policy
        self.gate = HostGate(clock=clock)
        self.log = certificate_log(
            str(path),
            slo=slo,
            policy=policy,
            clock=clock,
            max_batch_tokens=device.chunk_tokens,
            **NO_MEMORY,
        )
        self.model = new_latency_model(policy, step_tokens=device.chunk_tokens)
        self.state = ServingState(self.log, gate=self.gate)
        self.creditor = certified_creditor(
            self.gate,
            self.state,
            self.model,
            self.log,
            policy=policy,
            context_tokens=device.batch_max * device.chunk_tokens,
            step_tokens=device.chunk_tokens,
            clock=clock,
        )
        SimulatedProber(self.model, self.creditor, device)
        self.threads: list[Future[None]] = []
        self.engine = ServingEngine(requests, device)
        self.slo = slo
        self.slots: dict[int, int] = {}
        self.left = len(requests)
        self.segments = 0
        self.look_ns = 0
        self.looked_at = self.gate.demand
        self.state.beat()  # Before any thread asks for credit.

    # ---- the borrower's thread

    def borrow(self) -> None:
        gate, layers = self.gate, self.device.layers
        per_step = -(-layers // self.device.layers_per_segment)
        segment_ns = round(
            (self.device.layers_per_segment * self.device.layer_ms + self.device.gate_ms)
            * NS_PER_MS
        )
        assert layers % self.device.layers_per_segment == 0
        while not self.stage.is_over:
            gate.begin_step()
            self.stage.wait("borrower", lambda: not self._is_look_due())
            for _ in range(per_step):
                with self.stage.changed:
                    # At the gate; it moves as soon as the gate lets it.
                    self.stage.waits["borrower"] = self._may_pass
                verdict = gate.pass_(timeout_ms=1000 * DEADLINE_S)
                if verdict is not Verdict.PASSED:
                    return
                self.segments += 1
                self.stage.sleep_until("borrower", self.stage.clock.now_ns() + segment_ns)
            gate.end_step()

    def _may_pass(self) -> bool:
        """Whether the borrower, at its gate, is about to do something."""
        return self.gate.is_running() or (self.gate.is_open() and self.gate.credit_left > 0)

    # ---- the creditor's thread

    def credit(self) -> None:
        while not self.stage.is_over:
            self.stage.wait("creditor", self._is_look_due)
            if self.stage.is_over:
                return
            self.looked_at = self.gate.demand
            self.look_ns = self.stage.clock.now_ns() + max(1, self.creditor.look())

    def _is_look_due(self) -> bool:
        return self.looked_at != self.gate.demand or self.stage.clock.now_ns() >= self.look_ns

    # ---- serving's thread

    def serve(self) -> None:
        clock, stage = self.stage.clock, self.stage
        while not stage.is_over:
            stage.wait("serving", self.engine.has_work)
            if stage.is_over:
                return
            asked_ns = clock.now_ns()
            work = self.engine.plan()
            features = (
                float(work.decode_sequences),
                float(work.context_tokens),
                float(work.prefill_tokens),
            )
            if self.slo.slowdown > 0:
                self._lend(features)
            lent_ns = clock.now_ns()
            stage.wait("serving", lambda: not self.gate.is_running())
            began_ns = clock.now_ns()
            took_ns = round(self.device.step_ms(work) * NS_PER_MS)
            stage.sleep_until("serving", began_ns + took_ns)
            names = ("decode_sequences", "context_tokens", "prefill_tokens")
            named = dict(zip(names, features, strict=True))
            self.log.append_step(
                self.model.observe(took_ms := took_ns / NS_PER_MS, **named),
                actual_ms=took_ms,
                blocked_ms=(began_ns - lent_ns) / NS_PER_MS,
                lent_ms=(lent_ns - asked_ns) / NS_PER_MS,
                began_ns=began_ns,
                **named,
            )
            emitted = self.engine.complete(work)
            if emitted.tokens:
                self.state.emitted([self.slots[number] for number in emitted.tokens])
            for number in emitted.finished:
                self.state.finished(self.slots[number])
            self.left -= len(emitted.finished)

    def _lend(self, features: tuple[float, float, float]) -> None:
        gate, clock = self.gate, self.stage.clock
        slots = list(self.slots.values())
        while (offer := self.creditor.offer(features, slots)) is not None:
            epoch, until_ns = offer.close_epoch, offer.until_ns

            def is_ours(epoch: int = epoch) -> bool:
                return gate.is_open() and gate.close_epoch == epoch

            def is_over(until_ns: int = until_ns, is_ours: Callable[[], bool] = is_ours) -> bool:
                is_used_up = gate.credit_left == 0 and not gate.is_running()
                return not is_ours() or clock.now_ns() > until_ns or is_used_up

            self.stage.wait("serving", is_over)
            is_spent = is_ours() and clock.now_ns() <= until_ns
            self.creditor.withdraw()
            if not is_spent:
                return
        self.creditor.withdraw()

    # ---- the conductor, in the test's thread

    def run(self) -> None:
        """Serve all requests; the log is closed then."""
        with ThreadPoolExecutor(max_workers=3) as threads, ExitStack() as ends:
            ends.callback(self.gate.shut_down)
            ends.callback(self.stage.end)
            self.threads = [threads.submit(one) for one in (self.borrow, self.credit, self.serve)]
            self._conduct()
        self._raise_failures()
        self.log.close()

    def _raise_failures(self) -> None:
        for thread in self.threads:
            if thread.done():
                thread.result()

    def _conduct(self) -> None:
        start_ns = self.stage.clock.now_ns()
        arrivals_ns = [start_ns + round(one.arrival_ms * NS_PER_MS) for one in self.requests]
        lead_ns = round(self.device.host_lead_ms * NS_PER_MS)
        arrived = admitted = 0
        self._settle()
        while self.left and not self.stage.is_over:
            times = [*self.stage.sleepers.values(), self.look_ns]
            times += arrivals_ns[arrived : arrived + 1]
            times += [one + lead_ns for one in arrivals_ns[admitted:arrived][:1]]
            now_ns = min(times)
            with self.stage.changed:
                self.stage.clock.advance(now_ns - self.stage.clock.now_ns())
                self.state.beat()
                self.stage.changed.notify_all()
            self._settle()
            while arrived < len(arrivals_ns) and arrivals_ns[arrived] <= now_ns:
                tokens = self.requests[arrived].prompt_tokens
                self.slots[arrived] = self.state.arrived(tokens=tokens)
                arrived += 1
            while admitted < arrived and arrivals_ns[admitted] + lead_ns <= now_ns:
                with self.stage.changed:
                    self.engine.admit(admitted)
                admitted += 1
            self._settle()

    def _settle(self) -> None:
        """Wait until nobody has anything left to do at this time."""
        give_up_s = time.monotonic() + DEADLINE_S
        quiet = 0
        while quiet < 2 and not self.stage.is_over:
            assert time.monotonic() < give_up_s, "a thread never comes to rest"
            self._raise_failures()
            # Twice: what one of them did last may have woken one that was seen before.
            quiet = quiet + 1 if self.stage.is_quiet(("borrower", "creditor", "serving")) else 0
            with self.stage.changed:
                self.stage.changed.notify_all()
            if not quiet:
                time.sleep(LOOK_S / 5)
