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
# Fields of an ADMISSION, and the header fields that they must equal.
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
_BEFORE_ALL_MOVES: Final = 1  # the arbiter's epoch


class MemoryReplay:
    """Replays the holders of slabs from the records."""

    def __init__(self, header: dict[str, Any], requests: LiveRequests) -> None:
        """Begin with all slabs unowned; another replay updates `requests`."""
        self._header = header
        self._requests = requests
        self._held = Counter({_NOBODY: header["slabs"]})
        self._move_epoch = _BEFORE_ALL_MOVES
        self._leases = 0  # number of the last granted lease
        self._lent: Counter[tuple[int, int]] = Counter()  # by lease and borrower
        self._asked = 0  # slabs that serving has asked back and not received
        self._admissions: list[dict[str, Any]] = []  # since the last move

    def admission(self, record: LogRecord) -> list[str]:
        """Recompute an admission from its terms."""
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
                if header[there] != terms[here]
            ),
            *broken(
                (
                    terms["burst_requests"] >= header["burst_requests"],
                    lambda: f"burst_requests is under the header's {header['burst_requests']}",
                ),
                (
                    _SERVING < terms["to_partition"] < header["partitions"],
                    lambda: f"partition {terms['to_partition']} is not a borrower",
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
        """Follow the slabs; a loan needs its admission."""
        move, held, before = record.fields, self._held, self._move_epoch
        source, target, slabs = move["from"], move["to"], move["slabs"]
        tenants = range(_QUARANTINE, self._header["partitions"])
        wrong = broken(
            (source in tenants, lambda: f"partition {source} does not exist"),
            (target in tenants, lambda: f"partition {target} does not exist"),
            (slabs > 0, lambda: f"moves {slabs} slabs from {source} to {target}"),
            (move["epoch"] == before + 1, lambda: f"epoch {move['epoch']} after {before}"),
            (held[source] >= slabs, lambda: f"{source} gives {slabs} slabs, has {held[source]}"),
        )
        wrong += self._kind(move)
        self._move_epoch = move["epoch"]
        self._admissions.clear()  # they were for the previous epoch
        held[source] -= slabs
        held[target] += slabs
        return wrong

    def _kind(self, move: dict[str, Any]) -> list[str]:
        """Check that the move is valid, and follow its lease."""
        kind, lease_id, slabs = move["move_kind"], move["lease_id"], move["slabs"]
        source, target = _party(move["from"]), _party(move["to"])
        has_lease = _MOVES.get((kind, source, target))
        if has_lease is None:
            return [f"no move of kind {kind} goes from {source} to {target}"]
        if has_lease != (lease_id != 0):
            return [f"a move of kind {kind} from {source} to {target} with lease {lease_id}"]
        if kind == _GRANT:
            self._leases, before = lease_id, self._leases
            self._lent[lease_id, move["to"]] += slabs
            return self._loan(move) + broken(
                (lease_id == before + 1, lambda: f"lease {lease_id} is granted after {before}")
            )
        wrong = []
        if has_lease:
            left = self._lent[lease_id, move["from"]]
            if left < slabs:
                wrong.append(f"lease {lease_id} gives {slabs} slabs, has {left}")
            self._lent[lease_id, move["from"]] -= slabs
        if (source, target) == ("a borrower", "serving"):
            self._asked -= slabs
            if self._asked < 0:
                wrong.append(f"serving gets {slabs} slabs, it asked for {self._asked + slabs}")
        return wrong

    def _loan(self, move: dict[str, Any]) -> list[str]:
        """Find the admission of a loan: same epoch, borrower and number of slabs."""
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
        """Check a revocation: certificates assume that slabs are back, or given up, within T."""
        slabs = record.fields["slabs"]
        left_ms = (record.fields["deadline_ns"] - record.time_ns) / NS_PER_MS
        allowed_ms = self._header["revoke_ms"]
        self._asked += slabs
        return broken(
            (slabs > 0, "asks for no slab"),
            (
                left_ms <= allowed_ms,
                lambda: f"the deadline is in {left_ms} ms, {allowed_ms} are allowed",
            ),
        )


def _party(partition: int) -> str:
    """Return a partition's role in a move."""
    return {_QUARANTINE: "quarantine", _NOBODY: "nobody", _SERVING: "serving"}.get(
        partition, "a borrower"
    )


def _demand_blocks(terms: dict[str, Any]) -> int:
    """Return the blocks that serving can take within the horizon, by an ADMISSION's terms."""
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
