# Written by `make stub`: change the C++ bindings, or tests/stub.py.
# The C++ headers describe the contracts and units of these classes and functions.

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from rose._core import SchedulerCore

class ClusterWorld:
    def __init__(
        self,
        *,
        versions: int,
        horizon_ms: float,
        tick_ms: float,
        gather_ms: float,
        borrowed_report_ms: float,
        dedicated_report_ms: float,
        chunk_tokens: int,
        is_stepwise: bool,
        is_logged: bool,
    ) -> None: ...
    def add_job(
        self,
        *,
        job: int,
        first_turn: npt.ArrayLike,
        input_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike,
        tool_ms: npt.ArrayLike,
        group: npt.ArrayLike,
        mode: int,
        batch: int,
        train_ms: float,
        max_staleness: int,
        weight: float,
    ) -> None: ...
    def add_worker(
        self,
        *,
        number: int,
        kind: int,
        domain: int,
        job: int,
        prefill_tokens_per_s: float,
        decode_step_ms: float,
        decode_ms_per_sequence: float,
        decode_ms_per_context_token: float,
        seats: int,
        kv_tokens: int,
        start_up_ms: float,
        update_ms: float,
        pause_ms: float,
        at_ms: npt.ArrayLike,
        share: npt.ArrayLike,
        lent_kv_tokens: npt.ArrayLike,
    ) -> None: ...
    def run(
        self, core: SchedulerCore, on_progress: Callable[[float, int], bool] | None = None
    ) -> dict[str, Any]: ...
