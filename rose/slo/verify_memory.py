"""Replay of slab loans: rules 1 to 8 of `docs/certificates.md`."""

from collections import Counter
from typing import Any, Final

from rose.slo.log_file import LogRecord
from rose.slo.verify_claims import broken
from rose.slo.verify_requests import LiveRequests
from rose.units import NS_PER_MS, ceil_div

_NOBODY: Final = -1
_QUARANTINE: Final = -2
_SERVING: Final = 0
_ADMISSION_RANGES: Final = (
    ("horizon_ms", 1e7),
    ("decode_tokens_per_s", 1e8),
    ("prefill_tokens_per_s", 1e8),
)
# Fields of an ADMISSION, and the header fields that they must be equal to.
_SAID_TWICE: Final = (
    ("block_tokens", "block_tokens"),
    ("max_request_tokens", "max_request_tokens"),
    ("max_batch_tokens", "max_batch_tokens"),
    ("horizon_ms", "revoke_ms"),
)
# Valid moves as (move_kind, from, to), and whether they concern a lease.
_MOVES: Final = {
    (0, "nobody", "serving"): False,
    (1, "serving", "nobody"): False,
    (2, "nobody", "a borrower"): True,
    (3, "a borrower", "nobody"): True,
    (3, "a borrower", "serving"): True,
    (4, "serving", "quarantine"): False,
    (4, "a borrower", "quarantine"): True,
    (5, "quarantine", "nobody"): False,
}
_GRANT: Final = 2
_BEFORE_ALL_MOVES: Final = 1  # the arbiter's epoch before its first move


class MemoryReplay:
    """Replays the holders of slabs from the records."""

    def __init__(self, header: dict[str, Any], requests: LiveRequests) -> None:
        """Begin with all slabs unowned. `ComputeReplay` updates `requests`."""
        self._header = header
        self._requests = requests
        self._held = Counter({_NOBODY: header["slabs"]})
        self._move_epoch = _BEFORE_ALL_MOVES
        self._leases = 0  # id of the last granted lease
        self._lent: Counter[tuple[int, int]] = Counter()  # slabs by lease and borrower
        self._asked = 0  # slabs that serving revoked and has not received yet
        self._admissions: list[dict[str, Any]] = []  # admissions since the last move

    def admission(self, record: LogRecord) -> list[str]:
        """Recompute an admission from its terms."""
        terms, header = record.fields, self._header
        self._admissions.append(terms)
        if terms["block_tokens"] == 0:
            return ["block_tokens must be above 0, is 0"]
        if not all(0 <= terms[name] <= most for name, most in _ADMISSION_RANGES):
            return ["horizon_ms or a rate is out of range"]
        lent, unowned, slabs = terms["slabs"], terms["unowned_slabs"], header["slabs"]
        pending = self._requests.pending
        return [
            *(
                f"{here} differs from the header's {header[there]}"
                for here, there in _SAID_TWICE
                if header[there] != terms[here]
            ),
            *broken(
                (
                    terms["burst_requests"] >= header["burst_requests"],
                    lambda: f"burst_requests is below the header's {header['burst_requests']}",
                ),
                (
                    self._requests.longest_prompt <= header["max_request_tokens"],
                    lambda: (
                        f"a prompt of {self._requests.longest_prompt} tokens had arrived, but "
                        f"max_request_tokens is {header['max_request_tokens']}"
                    ),
                ),
                (
                    _SERVING < terms["to_partition"] < header["partitions"],
                    lambda: f"partition {terms['to_partition']} is not a borrower",
                ),
                (
                    terms["running_requests"] >= pending,
                    lambda: (
                        f"running_requests is {terms['running_requests']}, but {pending} requests "
                        f"had arrived and not finished"
                    ),
                ),
                (
                    terms["revocable_blocks"] == 0,
                    lambda: (
                        f"revocable_blocks must be 0, is {terms['revocable_blocks']}: lent blocks "
                        f"are no supply"
                    ),
                ),
                (
                    1 <= lent <= unowned <= slabs,
                    lambda: (
                        f"grants {lent} slabs with {unowned} unowned slabs and {slabs} slabs in all"
                    ),
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
            (
                supply >= demand,
                lambda: f"supply of {supply} blocks is below the demand of {demand} blocks",
            ),
            (
                supply - demand == terms["slack_blocks"],
                lambda: f"slack_blocks is not {supply - demand}",
            ),
        )

    def move(self, record: LogRecord) -> list[str]:
        """Check a move, and update the holders; a loan needs an admission."""
        move, held, before = record.fields, self._held, self._move_epoch
        source, target, slabs = move["from"], move["to"], move["slabs"]
        tenants = range(_QUARANTINE, self._header["partitions"])
        wrong = broken(
            (source in tenants, lambda: f"partition {source} does not exist"),
            (target in tenants, lambda: f"partition {target} does not exist"),
            (slabs > 0, lambda: f"moves {slabs} slabs from {source} to {target}"),
            (
                move["epoch"] == before + 1,
                lambda: f"epoch {move['epoch']} follows epoch {before}",
            ),
            (
                held[source] >= slabs,
                lambda: f"partition {source} gives {slabs} slabs, but holds {held[source]}",
            ),
        )
        wrong += self._kind(move)
        self._move_epoch = move["epoch"]
        self._admissions.clear()  # they are valid for the previous epoch only
        held[source] -= slabs
        held[target] += slabs
        return wrong

    def _kind(self, move: dict[str, Any]) -> list[str]:
        """Check the kind and the parties of a move, and update its lease."""
        kind, lease_id, slabs = move["move_kind"], move["lease_id"], move["slabs"]
        source, target = _party(move["from"]), _party(move["to"])
        has_lease = _MOVES.get((kind, source, target))
        if has_lease is None:
            return [f"no move of kind {kind} goes from {source} to {target}"]
        if has_lease != (lease_id != 0):
            rule = "needs a lease" if has_lease else "has no lease"
            return [
                f"a move of kind {kind} from {source} to {target} {rule}, lease_id is {lease_id}"
            ]
        if kind == _GRANT:
            self._leases, before = lease_id, self._leases
            self._lent[lease_id, move["to"]] += slabs
            return self._loan(move) + broken(
                (lease_id == before + 1, lambda: f"lease {lease_id} follows lease {before}")
            )
        wrong = []
        if has_lease:
            left = self._lent[lease_id, move["from"]]
            if left < slabs:
                wrong.append(f"lease {lease_id} gives {slabs} slabs, but holds {left}")
            self._lent[lease_id, move["from"]] -= slabs
        if (source, target) == ("a borrower", "serving"):
            self._asked -= slabs
            if self._asked < 0:
                wrong.append(
                    f"serving gets {slabs} slabs, but was still waiting for {self._asked + slabs}"
                )
        return wrong

    def _loan(self, move: dict[str, Any]) -> list[str]:
        """Check that a loan has an admission of the same epoch, borrower and number of slabs."""
        timely = [one for one in self._admissions if one["epoch"] + 1 == move["epoch"]]
        if not timely:
            return ["the loan has no admission in the epoch before it"]
        wanted = (move["to"], move["slabs"])
        exact = [one for one in timely if (one["to_partition"], one["slabs"]) == wanted]
        if not exact:
            admitted = ", ".join(f"{one['slabs']} to {one['to_partition']}" for one in timely)
            return [f"lends {wanted[1]} slabs to {wanted[0]}, but admissions were for {admitted}"]
        claimed, there = exact[-1]["unowned_slabs"], self._held[_NOBODY]
        free, own = exact[-1]["free_serving_blocks"], self._held[_SERVING]
        return broken(
            (
                claimed == there,
                lambda: f"was admitted with {claimed} unowned slabs, but there were {there}",
            ),
            (
                free <= own * self._header["blocks_per_slab"],
                lambda: f"was admitted with {free} free blocks, but serving had {own} slabs",
            ),
        )

    def revoke_begun(self, record: LogRecord) -> list[str]:
        """Check a revocation. Certificates assume that it ends within T."""
        slabs, most = record.fields["slabs"], self._header["slabs"]
        left_ms = (record.fields["deadline_ns"] - record.time_ns) / NS_PER_MS
        allowed_ms = self._header["revoke_ms"]
        self._asked += slabs
        return broken(
            (0 < slabs <= most, lambda: f"revokes {slabs} slabs, 1 to {most} are allowed"),
            (
                0 <= left_ms <= allowed_ms,
                lambda: f"the deadline is in {left_ms} ms, 0 to {allowed_ms} ms are allowed",
            ),
        )


def _party(partition: int) -> str:
    """Return a partition's role in a move."""
    return {_QUARANTINE: "quarantine", _NOBODY: "nobody", _SERVING: "serving"}.get(
        partition, "a borrower"
    )


def _demand_blocks(terms: dict[str, Any]) -> int:
    """Return the blocks that serving can take within the horizon, from an ADMISSION's terms."""
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
