"""Worker and scheduler of `rose vllm serve`: vLLM's own classes, on a device that lends."""

import math
import os
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final

from vllm.logger import init_logger
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.cpu_worker import CPUWorker

from rose.engines.vllm.guard import check_version
from rose.engines.vllm.join import join, joined
from rose.engines.vllm.probes import Probes, is_probe
from rose.engines.vllm.serving_scheduler import ServingScheduler, with_tokens
from rose.engines.vllm.settings import ServingSettings, check_config, read_settings
from rose.engines.vllm.spare_meter import SpareMeter
from rose.engines.vllm.tensors import geometry_of, pool_for_kv
from rose.errors import RoseError
from rose.executor import CoServing, ServingLane, StepBatch
from rose.executor.serving import ServingStep
from rose.memory import KVSpace, choose_slab_bytes
from rose.units import ceil_div

_HEADER_SLABS: Final = 2  # one for each tenant
# vLLM writes the lines of its own loggers only.
_LOG: Final = init_logger("vllm.rose")


@dataclass(frozen=True, slots=True)
class ServingSide:
    """State that worker and scheduler of a serving engine share."""

    device: CoServing
    lane: ServingLane
    observation: SpareMeter | None
    has_log: bool


class ServingWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not followed
    """A `CPUWorker` whose KV tensors are views of a pool that rose lends from."""

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Lay out the pool, and give its views to the model."""
        check_version()
        check_config(self.vllm_config)
        self._settings = ServingSettings(**read_settings(self.vllm_config.additional_config))
        with pool_for_kv(self._open):
            super().initialize_from_config(kv_cache_config)

    def _open(self, kv_cache_config: Any) -> KVSpace:
        settings, geometry = self._settings, geometry_of(kv_cache_config)
        slab_bytes = settings.slab_bytes or choose_slab_bytes(geometry)
        # vLLM's number of blocks includes its null block, while rose's null block is in a header
        # slab. So rose's pool is not smaller than vLLM's.
        slabs = ceil_div(kv_cache_config.num_blocks, geometry.blocks_per_slab(slab_bytes))
        device = CoServing.open(
            "cpu",
            pool_bytes=(slabs + _HEADER_SLABS) * slab_bytes,
            slab_bytes=slab_bytes,
            log_path=settings.log_path,
            isolation=settings.isolation,
            policy=settings.policy(),
        )
        lane = device.serving(
            geometry,
            slo=settings.slo(),
            step_tokens=self.scheduler_config.max_num_batched_tokens,
            request_tokens=self.model_config.max_model_len,
        )
        self._not_lending = None if settings.listen is None else _listen(device, settings.listen)
        is_lending = settings.listen is not None and self._not_lending is None
        observation = None if is_lending else SpareMeter(device)
        self._side = ServingSide(device, lane, observation, has_log=bool(settings.log_path))
        join(self.vllm_config, self._side, scheduler=LendingScheduler)
        return lane.kv

    def rose_look(self) -> str:
        """Return the path at which the server's front process can open the gate's page.

        The call also makes vLLM's loop look for work, so that a due probe can start.
        """
        return f"/proc/{os.getpid()}/fd/{self._side.device.gate.fileno()}"

    def rose_status(self) -> dict[str, Any]:
        """Return this engine's part of `/rose/status`."""
        device = self._side.device
        if device.gave_back is not None:
            return {
                "role": "serving",
                "device": device.device_id,
                "gave_back": device.gave_back,
            }
        reading = device.reading()
        return {
            "role": "serving",
            "device": device.device_id,
            "listen": self._settings.listen,
            "isolation": self._settings.isolation,
            "not_lending": self._not_lending,
            "gave_back": None,
            "pool_bytes": reading.pool_bytes,
            "reserve_bytes": reading.reserve_bytes,
            "lent_bytes": reading.lent_bytes,
            "cap_bytes": reading.cap_bytes,
            "used_share": reading.used_share,
            "running": reading.running,
            "waiting": reading.waiting,
            "revocations": sum(reading.revoked.values()),
            "revoked": dict(reading.revoked),
            "revoke_ms_p99": _revoke_ms_p99(device),
            "evidence_missing": {one.shape: one.missing for one in reading.evidence},
            "targets_too_low": dict(reading.targets_too_low()),
            "refusals": dict(reading.refusals),
            "refused_s": dict(reading.refused_s),
            "granted_s": reading.granted_s,
            "binding": None if reading.binding is None else reading.binding.sentence,
            "weights": getattr(self.weight_transfer_engine, "loaded", None),
            "killed_borrowers": list(reading.kills),
            "waited_ms": reading.waited_ms,
            "wait_budget_ms": reading.wait_budget_ms,
            "segment_too_long": None if reading.segment is None else reading.segment.sentence,
            "barred": reading.barred,
            **({"observed": dict(seen.report())} if (seen := self._side.observation) else {}),
        }

    def shutdown(self) -> None:
        """Take all loans back, then end as vLLM does."""
        side = getattr(self, "_side", None)
        if side is not None:
            side.device.close()
        super().shutdown()


def _listen(device: CoServing, path: str) -> str | None:
    """Let a borrower attach at `path`. If that fails, log and return why; serving starts anyway."""
    try:
        device.listen(path)
    except RoseError as error:
        _LOG.error("rose lends nothing: %s", error)
        return str(error)
    return None


def _revoke_ms_p99(device: CoServing) -> float | None:
    """Return the 99th percentile of the settled revocations' latencies in ms; None without any."""
    ordered = sorted(one.latency_ms for one in list(device.lender.collector.history))
    return ordered[ceil_div(99 * len(ordered), 100) - 1] if ordered else None


def _report_targets(device: CoServing) -> None:
    """Log which targets are below the measured bound of serving's steps, so that nothing is lent.

    Called when warm-up has ended.
    """
    reading = device.reading()
    missing = {one.shape: one.missing for one in reading.evidence if one.missing}
    if missing:
        _LOG.warning(
            "nothing is lent yet: warm-up ended, and the times of %s steps have no upper bound; "
            "they are measured while serving is idle (a larger --epsilon needs fewer steps)",
            " and ".join(missing),
        )
    for name, least_ms in reading.targets_too_low().items():
        option = f"--{name.replace('_', '-')}"
        _LOG.warning(
            "nothing is lent beside these targets: %s %g is below the upper bound of serving's "
            "steps on this machine; the smallest feasible value is %s %d",
            *(option, getattr(reading.slo, name), option, math.ceil(least_ms)),
        )


def _after_signals(note: Callable[[], None]) -> None:
    """Call `note` when vLLM handles SIGTERM or SIGINT; vLLM sets its handlers before the scheduler.

    The call runs within a signal handler, so it may take no lock.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, partial(_handle, note, signal.getsignal(which)))


def _handle(note: Callable[[], None], stock: Any, number: int, frame: FrameType | None) -> None:
    note()
    if callable(stock):
        stock(number, frame)
    elif stock == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


class LendingScheduler(ServingScheduler):
    """The scheduler of a live server. It protects steps from rollouts, and probes when idle."""

    def __init__(self, vllm_config: Any, **parts: Any) -> None:
        """Build vLLM's scheduler over the worker's lane."""
        side = joined(vllm_config, ServingSide)
        lane, self._observation = side.lane, side.observation
        self._device, self._has_log = side.device, side.has_log
        self._lender = side.device.lender
        self._is_ending = False
        _after_signals(self._note_end)
        self._late: list[dict[int, Any]] = []  # Outputs of unprotected steps, not reported yet.
        super().__init__(lane, vllm_config=vllm_config, **parts)
        self._step: ServingStep | None = None
        self._has_probes = False
        self._is_new = True  # until warm-up has ended
        self._probes = Probes(
            lane,
            vocabulary=vllm_config.model_config.get_vocab_size(),
            holds_tokens=lane.kv.lendable_bytes
            // lane.kv.geometry.block_bytes
            * lane.kv.geometry.block_tokens,
            block_hasher=get_request_block_hasher(
                self.hash_block_size,
                get_hash_fn_by_name(self.cache_config.prefix_caching_hash_algo),
            )
            if self.cache_config.enable_prefix_caching
            else None,
        )

    @property
    def needs_kv_cache_zeroing(self) -> bool:
        """True once a borrower has attached: the borrower's bits can be NaN in this model's dtype.

        vLLM reads this after it has allocated all blocks of a step.
        """
        return self._lender.newest is not None

    @needs_kv_cache_zeroing.setter
    def needs_kv_cache_zeroing(self, _needed: bool) -> None:
        """Ignore vLLM's value, which considers this model only."""

    def add_request(self, request: Request) -> None:
        """Queue a request, and end all probes."""
        super().add_request(request)
        self._observe()
        self._end_probes()

    def _observe(self) -> None:
        if self._observation is not None:
            self._observation.note(is_idle=not self.lane.has_requests)

    def _end_probes(self) -> None:
        probes = [one for one in self.requests if is_probe(one)]
        if probes:
            super().finish_requests(probes, RequestStatus.FINISHED_ABORTED)

    def _note_end(self) -> None:
        self._is_ending = True

    def has_requests(self) -> bool:
        """Return True if vLLM's loop has work. If the engine is idle, start a due probe first.

        vLLM's loop calls this between two steps. After a signal that ends the server, lending ends
        here, so the certificate log has its end even if vLLM kills the engine before its last
        request has ended.
        """
        if self._is_ending:
            self._end_probes()
            with self.lane.safety:
                self._device.close()
            return bool(super().has_requests())
        if super().has_requests():
            return True
        # The requests of a paused engine are no work. An engine that lends nothing runs no probes,
        # because it needs no evidence.
        is_paused = self.pause_state != PauseState.UNPAUSED
        if self.requests or is_paused or self._observation is not None:
            return False
        for probe in self._probes.due():
            self._has_probes = True
            super(ServingScheduler, self).add_request(probe)
        if self._is_new and not self._probes.is_warming_up:
            self._is_new = False
            with self.lane.safety:
                _report_targets(self._device)
        return bool(super().has_requests())

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Wait a bounded time until the borrower is parked, then plan a step.

        While no borrower is attached, most steps are planned without this protection.
        """
        # A certificate log must have every step and the time of its tokens. So with a log, all
        # steps are protected.
        if not self._has_log and self.lane.skips_step():
            return super().schedule(throttle_prefills)
        self._report_late()  # A certificate counts all tokens, so this comes before any loan.
        step = self._step = self.lane.step()
        step.__enter__()
        planned = False
        try:
            output = super().schedule(throttle_prefills)
            planned = output.total_num_scheduled_tokens > 0
            if planned:
                step.commit(self._batch(output))
            return output
        finally:
            if not planned:
                self._end_step()

    def _batch(self, output: SchedulerOutput) -> StepBatch:
        scheduled = output.num_scheduled_tokens
        decoding = sum(tokens == 1 for tokens in scheduled.values())
        return StepBatch(
            decode_sequences=decoding,
            context_tokens=sum(self.requests[one].num_computed_tokens for one in scheduled),
            prefill_tokens=output.total_num_scheduled_tokens - decoding,
            requests=tuple(scheduled),
        )

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, Any]:
        """Accept a step's tokens, and end the step."""
        outputs: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)
        if self._step is not None:
            self._end_step()
        if self._observation is not None:
            self._observe()
        if self._has_probes:
            for client in outputs.values():
                client.outputs = [one for one in client.outputs if not is_probe(one.request_id)]
            self._has_probes = any(map(is_probe, self.requests))
        return outputs

    def _report_tokens(self, plan: SchedulerOutput, outputs: dict[int, Any]) -> None:
        if self._step is not None:
            super()._report_tokens(plan, outputs)
            return
        # Until a borrower attaches, nothing needs the tokens of an unprotected step. One exception:
        # a request's wait is measured until its first token, so steps with a prompt report at once.
        self._late.append(outputs)
        if plan.total_num_scheduled_tokens > len(plan.num_scheduled_tokens):
            self._report_late()

    def _report_late(self) -> None:
        if self._late:
            late, self._late = self._late, []
            ids = [request_id for outputs in late for request_id in with_tokens(outputs)]
            self.lane.emitted_all(ids, is_late=True)

    def _report_finished(self) -> None:
        self._report_late()
        super()._report_finished()

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """End requests for a caller, such as a client that disconnects."""
        ended: list[Request] = super().finish_requests(request_ids, finished_status)
        return [one for one in ended if not is_probe(one.request_id)]

    def shutdown(self) -> None:
        """Free the device if a step has failed in flight, then shut down as vLLM does."""
        self.lane.give_step_up()
        super().shutdown()
