"""What the tests of this folder show of vLLM; docs/write_vllm.py makes a table of it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shown:
    """A feature, and the tests that fail without it.

    Args:
        feature: what a user gets.
        file: file of the tests, in this folder.
        tests: names of the tests, without `test_`.
    """

    feature: str
    file: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One version of vLLM, and how the tests run it.

    Args:
        version: minor version, one of `rose.engines.versions.VLLM`.
        mode: "live" for two servers with models, "wheel" for scheduler and block pool alone.
        shown: what holds there.
    """

    version: str
    mode: str
    shown: tuple[Shown, ...]


_LIVE: Final = "live_servers"
_EVENTS: Final = "live_events"
_STEPS: Final = "steps_in_flight"
_POOL: Final = "block_pool"

SETTINGS: Final = (
    Setting(
        "0.32",
        "live",
        (
            Shown("loans, and `/rose/status` on both ports", _LIVE, ("both_say_what_is_lent",)),
            Shown(
                "the same tokens despite revocations and aborts",
                _LIVE,
                ("revocations_and_aborts_change_no_token",),
            ),
            Shown(
                "a request stops the borrower before its prompt is tokenised",
                _LIVE,
                ("a_request_closes_the_gate_before_it_reaches_the_engine",),
            ),
            Shown("`rose lending`", _LIVE, ("an_operator_takes_all_back_and_rollouts_wait",)),
            Shown("`/pause`, `/resume`", _LIVE, ("paused_rollouts_go_on_with_their_tokens",)),
            Shown(
                "fresh weights for the borrower",
                _LIVE,
                ("fresh_weights_reach_the_borrower_while_serving_works",),
            ),
            Shown("a second borrower is refused", _LIVE, ("a_second_borrower_is_refused",)),
            Shown(
                "`--isolation mapped`",
                _LIVE,
                ("a_borrower_that_maps_only_its_loans_generates_the_same_tokens",),
            ),
            Shown(
                "SIGTERM and Ctrl-C end the certificate log",
                _LIVE,
                ("a_signal_ends_the_log_and_the_socket",),
            ),
            Shown("a lost socket file", _LIVE, ("without_the_file_of_the_socket_both_go_on",)),
            Shown(
                "death or standstill of serving",
                _LIVE,
                (
                    "serving_that_stands_still_leaves_the_borrower_its_requests",
                    "rollouts_outlive_serving_and_end_when_it_is_back",
                ),
            ),
            Shown(
                "`/rose/events`",
                _EVENTS,
                (
                    "events_begin_with_what_the_engine_is",
                    "a_revocation_is_an_event_and_lending_again_is_a_new_grant",
                    "bursts_of_serving_shrink_the_grant_and_it_grows_again",
                    "an_idle_borrower_tells_that_serving_is_gone_and_is_back",
                    "a_stream_of_events_does_not_delay_the_end_of_its_server",
                ),
            ),
            Shown(
                "fresh weights for a stock server with rose installed",
                _EVENTS,
                ("a_stock_server_and_a_borrower_load_two_versions_of_one_publisher",),
            ),
            Shown(
                "a stock server and a borrower behind `rose serve`, under kills and revocations",
                "live_fleet",
                ("no_turn_is_lost_or_doubled_while_engines_die_and_loans_are_revoked",),
            ),
            Shown(
                "death or standstill of the borrower",
                _LIVE,
                (
                    "serving_outlives_a_borrower_that_dies",
                    "serving_outlives_a_borrower_that_stands_still",
                ),
            ),
        ),
    ),
    Setting(
        "0.33",
        "wheel",
        (
            Shown(
                "the signatures that rose relies on",
                "vllm_guard",
                ("another_signature_is_unavailable",),
            ),
            Shown(
                "the decisions and prefix hits of vLLM's own scheduler",
                "same_decisions",
                (
                    "decisions_and_prefix_hits_are_those_of_stock",
                    "prompts_that_come_again_hit_all_but_their_last_token",
                ),
            ),
            Shown(
                "all tokens of all requests under many aborts and revocations",
                "storm",
                ("every_request_that_is_not_aborted_gets_all_its_tokens",),
            ),
            Shown(
                "lent blocks are back in the step that needs them",
                _STEPS,
                (
                    "a_step_at_its_gate_is_aborted_and_serving_is_planned_in_the_same_step",
                    "a_long_prompt_is_admitted_whole_or_not_at_all",
                ),
            ),
            Shown(
                "aborted steps are undone, and preempted requests keep their tokens",
                _STEPS,
                (
                    "no_block_that_an_aborted_step_did_not_write_is_found_again",
                    "a_step_that_ends_delivers_the_tokens_of_requests_that_were_preempted_in_it",
                ),
            ),
            Shown(
                "urgent prompts wait for no decode",
                "vllm_scheduler",
                ("urgent_prompts_wait_no_step_on_rose",),
            ),
            Shown(
                "answers and events of vLLM's own block pool",
                _POOL,
                (
                    "the_pool_answers_as_vllms_own",
                    "prefixes_that_leave_with_their_slab_are_told",
                ),
            ),
        ),
    ),
)
