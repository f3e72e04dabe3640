"""Replaying loans of slabs: rules 1 to 8 of `docs/certificates.md`."""

from collections import Counter
from typing import Any, Final

from rose.slo.log_file import LogRecord
from rose.slo.verify_claims import broken
from rose.slo.verify_requests import Requests
from rose.units import NS_PER_MS, ceil_div

_NOBODY: Final = -1
_QUARANTINE: Final = -2
_SERVING: Final = 0
_ADMISSION_RANGES: Final = (
    ("horizon_ms", 1e7),
    ("decode_tokens_per_s", 1e8),
    ("prefill_tokens_per_s", 1e8),
)
# Fields of an ADMISSION and of the header that say the same; a 0 in the header says nothing.
_SAID_TWICE: Final = (
    ("block_tokens", "block_tokens"),
    ("max_request_tokens", "max_request_tokens"),
    ("max_batch_tokens", "max_batch_tokens"),
    ("horizon_ms", "revoke_ms"),
)


class MemoryReplay:
    """Who holds which slabs, as the records tell it."""

    def __init__(self, header: dict[str, Any], requests: Requests) -> None:
        """Begin with all slabs unowned; `requests` is what another replay keeps up to date."""
        self._header = header
        self._requests = requests
        self._held = Counter({_NOBODY: header["slabs"]})
        self._move_epoch = 0
        self._admissions: list[dict[str, Any]] = []  # since the last move

    def admission(self, record: LogRecord) -> list[str]:
        """Do the sum again from its terms."""
        terms, header = record.fields, self._header
        self._admissions.append(terms)
        if terms["block_tokens"] == 0:
            return ["a block of size 0"]
        if not all(0 <= terms[name] <= most for name, most in _ADMISSION_RANGES):
            return ["a horizon or a rate out of range"]
        lent, unowned, slabs = terms["slabs"], terms["unowned_slabs"], header["slabs"]
        pending = self._requests.pending
        return [
            *(
                f"{here} differs from the header's {header[there]}"
                for here, there in _SAID_TWICE
                if header[there] not in (0, terms[here])
            ),
            *broken(
                (
                    terms["burst_requests"] >= header["burst_requests"],
                    lambda: f"burst_requests is under the header's {header['burst_requests']}",
                ),
                (
                    _SERVING < terms["to_partition"] < header["partitions"],
                    lambda: f"partition {terms['to_partition']} is no borrower",
                ),
                (
                    terms["running_requests"] >= pending,
                    lambda: (
                        f"knows of {terms['running_requests']} requests, {pending} were running"
                    ),
                ),
                (
                    terms["revocable_blocks"] == 0,
                    lambda: f"counts on {terms['revocable_blocks']} blocks that are still lent",
                ),
                (
                    1 <= lent <= unowned <= slabs,
                    lambda: f"{lent} of {unowned} unowned slabs, of {slabs} in all",
                ),
            ),
            *self._balance(terms),
        ]

    def _balance(self, terms: dict[str, Any]) -> list[str]:
        """Compare supply and demand."""
        demand = _demand_blocks(terms)
        kept = (terms["unowned_slabs"] - terms["slabs"]) * self._header["blocks_per_slab"]
        supply = terms["free_serving_blocks"] + kept + terms["revocable_blocks"]
        return broken(
            (demand == terms["demand_blocks"], lambda: f"demand_blocks is not {demand}"),
            (supply >= demand, lambda: f"{supply} blocks are left for a demand of {demand}"),
            (
                supply - demand == terms["slack_blocks"],
                lambda: f"slack_blocks is not {supply - demand}",
            ),
        )

    def move(self, record: LogRecord) -> list[str]:
        """Follow the slabs; a loan needs the admission it was decided by."""
        move, held, before = record.fields, self._held, self._move_epoch
        source, target, slabs = move["from"], move["to"], move["slabs"]
        tenants = range(_QUARANTINE, self._header["partitions"])
        wrong = broken(
            (source in tenants, lambda: f"partition {source} does not exist"),
            (target in tenants, lambda: f"partition {target} does not exist"),
            (
                slabs > 0 and source != target,
                lambda: f"moves {slabs} slabs from {source} to {target}",
            ),
            (move["epoch"] > before, lambda: f"epoch {move['epoch']} after {before}"),
            (held[source] >= slabs, lambda: f"{source} gives {slabs} slabs, has {held[source]}"),
        )
        if source == _NOBODY and target >= 0 and move["lease_id"] != 0:
            wrong += self._loan(move)
        self._move_epoch = max(before, move["epoch"])
        self._admissions.clear()  # they were for the epoch that is over
        held[source] -= slabs
        held[target] += slabs
        return wrong

    def _loan(self, move: dict[str, Any]) -> list[str]:
        """Find the admission of a loan: same epoch, same borrower, same number of slabs."""
        timely = [one for one in self._admissions if one["epoch"] + 1 == move["epoch"]]
        if not timely:
            return ["a loan without an admission at the epoch before"]
        wanted = (move["to"], move["slabs"])
        exact = [one for one in timely if (one["to_partition"], one["slabs"]) == wanted]
        if not exact:
            admitted = ", ".join(f"{one['slabs']} to {one['to_partition']}" for one in timely)
            return [f"lends {wanted[1]} slabs to {wanted[0]}, admitted were {admitted}"]
        claimed, there = exact[-1]["unowned_slabs"], self._held[_NOBODY]
        free, own = exact[-1]["free_serving_blocks"], self._held[_SERVING]
        return broken(
            (claimed == there, lambda: f"admitted with {claimed} unowned slabs, {there} existed"),
            (
                free <= own * self._header["blocks_per_slab"],
                lambda: f"admitted with {free} free blocks, serving had {own} slabs",
            ),
        )

    def revoke_begun(self, record: LogRecord) -> list[str]:
        """A certificate reckons with slabs that are back, or given up, within T."""
        left_ms = (record.fields["deadline_ns"] - record.time_ns) / NS_PER_MS
        allowed_ms = self._header["revoke_ms"]
        return broken(
            (
                allowed_ms == 0 or left_ms <= allowed_ms,
                lambda: f"the deadline is in {left_ms} ms, {allowed_ms} are allowed",
            )
        )


def _demand_blocks(terms: dict[str, Any]) -> int:
    """Return what serving can take within the horizon, from the terms of an ADMISSION."""
    per_block, horizon_ms = terms["block_tokens"], terms["horizon_ms"]
    first = 1 + int(horizon_ms * terms["decode_tokens_per_s"] / 1000.0)
    prefilled = int(horizon_ms * terms["prefill_tokens_per_s"] / 1000.0)
    further = terms["burst_requests"]
    asked = terms["max_request_tokens"] + further * terms["burst_request_tokens"]
    prompts = min(asked, terms["max_batch_tokens"] + prefilled)
    return int(
        terms["running_requests"] * ceil_div(first, per_block)
        + ceil_div(prompts + first, per_block)
        + further * ceil_div(first + per_block - 1, per_block)
    )
