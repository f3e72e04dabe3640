"""A comparison on real engines: every scheme serves the same pieces of the trace in turn."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rose.cli.compare_arms import POSSIBLE, CompareBench
from rose.cli.compare_record import Audit
from rose.cli.compare_run import Asked, Listener, check_covers
from rose.cli.compare_schemes import CLAIRVOYANT
from rose.cli.compare_shares import Share
from rose.clock import BootClock
from rose.demo.bench import BenchSettings, choose_cores
from rose.demo.circle_options import tool_wait_s
from rose.demo.experiment import pieces_of
from rose.demo.record import Slice
from rose.demo.replay import Replay, probing, running
from rose.demo.slices import in_turn
from rose.engines.torch import run_on_cores
from rose.engines.transformers import load_model
from rose.errors import Unavailable
from rose.slo import Policy
from rose.slo.verify import verify_log
from rose.traces import Trace
from rose.units import MIB

_WINDOW_S: Final = 6.0
_ALONE_S: Final = 1.5
_WARM_UP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class EnginesRun:
    """Runs every scheme on two small models, on one core of this machine.

    Args:
        serving_model: preset or folder.
        rollout_model: preset or folder.
        pool_bytes: KV memory: of both engines under rose, of each of them otherwise.
        reserve_bytes: what serving always has under rose.
        layers_per_segment: between two gates.
        rollouts: turns at once.
    """

    serving_model: str = "tiny-qwen2"
    rollout_model: str = "tiny-policy"
    pool_bytes: int = 64 * MIB
    reserve_bytes: int = 8 * MIB
    layers_per_segment: float = 0.5
    rollouts: int = 8

    @property
    def possible(self) -> frozenset[str]:
        """What needs no second core, and no knowledge of the future."""
        return POSSIBLE

    @property
    def left_out(self) -> tuple[str, ...]:
        """What one core cannot show."""
        sentence = (
            "Left out: static_split and rose_spatial need a device of several cores, and this one "
            f"has one; {CLAIRVOYANT} knows the future. --virtual has all three."
        )
        return (sentence,)

    @property
    def prompt_tokens_max(self) -> int:
        """What fits the pool beside others."""
        return 1024

    @property
    def output_tokens_max(self) -> int:
        """What fits the pool beside others."""
        return 256

    @property
    def settings(self) -> dict[str, object]:
        """The engines."""
        return {
            "serving_model": self.serving_model,
            "rollout_model": self.rollout_model,
            "rollouts": self.rollouts,
            "pool_mib": self.pool_bytes // MIB,
            "reserve_mib": self.reserve_bytes // MIB,
            "layers_per_segment": self.layers_per_segment,
        }

    def run(self, asked: Asked, listener: Listener) -> None:
        """Serve every piece of the trace under every scheme, at every load.

        Raises:
            InvalidArgument: the trace is too short, or there is no second core for the load.
            Unavailable: an engine died.
        """
        settings = self._bench_settings(asked)
        listener.say("loading models")
        usable = os.sched_getaffinity(0)
        run_on_cores(len(settings.cores))
        logs: dict[str, Path] = {}
        try:
            with ExitStack() as owned:
                owned.callback(os.sched_setaffinity, 0, usable)
                os.sched_setaffinity(0, usable - settings.cores)
                clock = BootClock()
                serving_model = load_model(self.serving_model, seed=asked.seed, device="cpu")
                rollout_model = load_model(self.rollout_model, seed=asked.seed, device="cpu")
                bench = CompareBench(
                    serving_model,
                    rollout_model,
                    settings,
                    asked.slo,
                    clock,
                    owned=owned,
                    logs=listener.logs,
                )
                logs = bench.logs
                replay = Replay(
                    clock=clock,
                    vocabulary=serving_model.config.vocab_size,
                    tpot_ms=asked.slo.tpot_ms,
                )
                shares = {scheme.name: bench.build(scheme) for scheme in asked.schemes}
                _Turns(asked, listener, bench, shares, replay).run()
        finally:
            # The devices are closed, so their logs are whole; also after an interrupt.
            for scheme, log in logs.items():
                if log.exists():
                    listener.audit(_audit(scheme, log))

    def _bench_settings(self, asked: Asked) -> BenchSettings:
        return BenchSettings(
            device="cpu",
            cores=choose_cores(1),
            pool_bytes=self.pool_bytes,
            reserve_bytes=self.reserve_bytes,
            policy=Policy(),
            layers_per_segment=self.layers_per_segment,
            rollouts=self.rollouts,
            # Trajectories are short: their tokens cost as much in the first window as in the last,
            # so a scheme whose rollouts get further does not look slower for it.
            rollout_prompt_tokens=104,
            rollout_output_tokens=24,
            request_tokens=self.prompt_tokens_max,
            log_path=Path(),
            seed=asked.seed,
            circle=None,
            tool_wait_s=tool_wait_s(None, seed=asked.seed),
        )


@dataclass(frozen=True, slots=True)
class _Turns:
    """Which scheme serves which piece of the trace, and when."""

    asked: Asked
    listener: Listener
    bench: CompareBench
    shares: dict[str, Share]
    replay: Replay

    def run(self) -> None:
        asked, say = self.asked, self.listener.say
        say("measuring the capacity of serving alone")
        capacity_rps = self.replay.capacity_rps(asked.trace, self.bench.alone(), seed=asked.seed)
        windows = max(1, round(asked.seconds / _WINDOW_S))
        window_s = asked.seconds / windows
        for first, load in enumerate(asked.loads):
            trace = asked.trace.rescaled(rate_rps=load * capacity_rps)
            check_covers(trace, asked.seconds)
            pieces = pieces_of(trace, count=windows, seconds=window_s, seed=asked.seed)
            if first == 0:
                self._warm_up(pieces[0].window(0.0, min(_WARM_UP_S, window_s)))
            for number, piece in enumerate(pieces):
                self._round(load, number, piece, of=len(pieces))

    def _warm_up(self, piece: Trace) -> None:
        for name in self.shares:
            self.listener.say(f"warming up: {name}")
            self._window(piece, name, number=-1)

    def _round(self, load: float, number: int, piece: Trace, *, of: int) -> None:
        """Serve one piece under every scheme, in an order that changes from round to round."""
        solo = self.replay.solo("share_all", self.bench.rollouts, _ALONE_S)
        rollouts_per_s = solo.tokens / solo.seconds
        for name in in_turn(list(self.shares), number):
            self.listener.say(f"load {load:g}, window {number + 1} of {of}: {name}")
            found = self._window(piece, name, number=number)
            rate = found.rollout_tokens / found.seconds
            harvest = rate / rollouts_per_s if rollouts_per_s > 0 else None
            self.listener.window(replace(found, load=load, harvest=harvest))

    def _window(self, piece: Trace, name: str, *, number: int) -> Slice:
        share = self.shares[name]
        seed = hash((self.asked.seed, number, list(self.shares).index(name))) & 0xFFFFFFFF
        share.begin()
        with ExitStack() as stack:
            stack.enter_context(probing(share.arm.engine))
            if share.arm.load is not None:
                stack.enter_context(running(share.arm.load))
            found = self.replay.slice(piece, share.arm, number=number, seed=seed)
            felt = share.felt()
        if share.arm.load is not None and share.arm.load.failures:
            raise Unavailable(
                f"rollouts of scheme {name} failed: {'; '.join(share.arm.load.failures)}"
            )
        return replace(
            found,
            blocked_ms=felt.blocked_ms,
            pauses=felt.pauses,
            pauses_ms=felt.pauses_ms,
            segments=felt.segments,
        )


def _audit(scheme: str, log: Path) -> Audit:
    verification = verify_log(log)
    return Audit(
        scheme=scheme,
        load=None,
        granted=verification.granted,
        verified=verification.verified,
        violations=len(verification.violations),
    )
