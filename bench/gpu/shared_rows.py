"""Row names of several processes; read by the parent, which does not load the core."""

from typing import Final

ARM_NAMES: Final = ("share_all", "priority", "host_window", "rose_idle", "rose_slack")
STATISTICS: Final = ("ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99")


def end_to_end_row(arm: str, statistic: str) -> str:
    return f"e2e_{statistic}_over_alone_{arm}"


END_TO_END_ROWS: Final = (
    *(end_to_end_row(arm, statistic) for arm in ARM_NAMES for statistic in STATISTICS),
    *(f"e2e_harvest_{arm}" for arm in ARM_NAMES),
    "e2e_rollout_tokens_per_s",
    "e2e_requests_each_arm",
)


def meeting_rows(arm: str) -> tuple[str, ...]:
    return (
        f"other_process_parked_tax_{arm}",
        f"other_process_running_slowdown_{arm}",
        f"other_process_late_segments_{arm}",
        f"other_process_first_step_p99_over_alone_{arm}",
    )
