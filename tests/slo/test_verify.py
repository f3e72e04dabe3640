"""The second opinion: honest logs pass, damage is found, forgeries are named."""

import struct
from pathlib import Path

import pytest

from rose.errors import CorruptData, InvalidArgument
from rose.slo.verify import verify_log
from tests.reference.slo import RECORD, recounted, reseal

KINDS = (
    "START ARRIVED FINISHED QUANTUM ADMISSION MOVE REVOKE_BEGUN STEP GAVE_BACK END TOKENS WAITED "
    "EVICTED"
).split()
ARRIVED, QUANTUM, ADMISSION, MOVE, REVOKE_BEGUN, STEP = 2, 4, 5, 6, 7, 8
SLACK = 29  # blocks that the log's one admission leaves: 32 + 3 * 8 for a demand of 27


def split(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return [content[at : at + RECORD] for at in range(0, len(content), RECORD)]


def kind_of(record: bytes) -> int:
    return int.from_bytes(record[:4], "little")


def first(records: list[bytes], kind: int, *, skip: int = 0) -> int:
    return [i for i, one in enumerate(records) if i > 0 and kind_of(one) == kind][skip]


def put(record: bytes, offset: int, form: str, *values: float) -> bytes:
    new = struct.pack("<" + form, *values)
    return record[:offset] + new + record[offset + len(new) :]


def test_an_honest_log_verifies(log_path: Path) -> None:
    verification = verify_log(str(log_path))
    assert verification.violations == []
    assert verification.is_complete
    assert set(verification.kinds) == set(KINDS)
    assert verification.records == sum(verification.kinds.values())
    assert verification.granted == verification.verified
    assert verification.granted == (verification.kinds["QUANTUM"] + verification.kinds["ADMISSION"])
    assert verification.coverage == 1.0
    assert verification.epsilon == 0.05


def test_every_flipped_byte_is_found(log_path: Path) -> None:
    content = log_path.read_bytes()
    for at in (*range(RECORD), *range(RECORD, len(content), 13)):  # a prime: all fields, in turn
        damaged = bytearray(content)
        damaged[at] ^= (0x01, 0x80, 0xFF)[at % 3]
        log_path.write_bytes(damaged)
        with pytest.raises((CorruptData, InvalidArgument)) as caught:
            verify_log(log_path)
        if at >= RECORD:
            assert caught.type is CorruptData
            assert f"record {at // RECORD} at byte {at // RECORD * RECORD}" in str(caught.value)


def test_every_truncation_is_found(log_path: Path) -> None:
    content = log_path.read_bytes()
    for length in (*range(RECORD), *range(RECORD, len(content), 13)):
        log_path.write_bytes(content[:length])
        with pytest.raises((CorruptData, InvalidArgument)):
            verify_log(log_path)
        if length >= RECORD and length % RECORD:
            with pytest.raises(CorruptData, match="cut off"):
                verify_log(log_path, allow_open=True)
    log_path.write_bytes(content[: 4 * RECORD])
    assert not verify_log(log_path, allow_open=True).is_complete


def test_a_missing_or_foreign_file_is_an_invalid_argument(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot read"):
        verify_log(tmp_path / "none")
    with pytest.raises(InvalidArgument, match="cannot read"):
        verify_log(tmp_path)
    for content in (b"", b"hello", b"\0" * 1000):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(InvalidArgument, match="not a certificate log"):
            verify_log(tmp_path / "other")


def test_exchanged_and_missing_records_are_found(log_path: Path) -> None:
    records = split(log_path)
    for forged in (
        [*records[:2], *records[3:]],
        [records[0], records[2], records[1], *records[3:]],
    ):
        log_path.write_bytes(b"".join(forged))
        with pytest.raises(CorruptData):
            verify_log(log_path)


def forge(log_path: Path, records: list[bytes]) -> list[str]:
    log_path.write_bytes(reseal(recounted(records)))
    verification = verify_log(log_path)
    if any("QUANTUM" in one or "ADMISSION" in one for one in verification.violations):
        assert verification.verified < verification.granted
    return verification.violations


# Every field of an ADMISSION, by its offset: one that is forged alone is found.
@pytest.mark.parametrize(
    ("offset", "form", "value", "says"),
    [
        (24, "Q", 1, "has no admission"),
        (32, "d", 5000.0, "horizon_ms differs"),
        (32, "d", float("nan"), "out of range"),
        (40, "d", 600.0, "demand_blocks is not"),
        (40, "d", -1.0, "out of range"),
        (48, "d", 2000.0, "demand_blocks is not"),
        (48, "d", 2e8, "out of range"),
        (56, "q", 7, "slack_blocks is not"),
        (64, "I", 7, "grants 7 slabs with 6 unowned"),
        (64, "I", 2, "but admissions were for 2 to 1"),
        (68, "I", 0, "block_tokens must be above 0"),
        (68, "I", 32, "block_tokens differs"),
        (72, "I", 0, "slack_blocks is not"),
        (76, "I", 9, "admitted with 9 unowned slabs"),
        (76, "I", 5, "admitted with 5 unowned slabs"),
        (80, "I", 1, "revocable_blocks must be 0"),
        (84, "I", 0, "running_requests is 0, but 1 requests"),
        (84, "I", 90, "supply of 56 blocks is below the demand of 116 blocks"),
        (88, "I", 1, "max_request_tokens differs"),
        (92, "I", 64, "max_batch_tokens differs"),
        (96, "I", 0, "burst_requests is below"),
        (96, "I", 3, "demand_blocks is not"),
        (100, "I", 9, "demand_blocks is not"),
        (104, "I", 1, "demand_blocks is not"),
        (108, "I", 0, "partition 0 is not a borrower"),
        (108, "I", 2, "partition 2 is not a borrower"),
    ],
)
def test_a_forged_admission_is_a_violation(log_path: Path, offset, form, value, says) -> None:
    records = split(log_path)
    at = first(records, ADMISSION)
    records[at] = put(records[at], offset, form, value)
    found = forge(log_path, records)
    assert any(says in one for one in found), found


def test_free_blocks_that_serving_had_no_slabs_for_are_a_violation(log_path: Path) -> None:
    records = split(log_path)
    at = first(records, ADMISSION)
    # The sums are right again: 8 blocks more are free, and 8 more are left over.
    records[at] = put(put(records[at], 72, "I", 40), 56, "q", SLACK + 8)
    assert any("40 free blocks, but serving had 4 slabs" in one for one in forge(log_path, records))


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (16, float("inf"), "ttft_ms must be finite and not negative, is inf"),
        (32, 1.0, "epsilon must be in (0, 1), is 1.0"),
        (32, float("nan"), "epsilon must be in (0, 1), is nan"),
        (40, -1.0, "signal_ms must be finite and not negative, is -1.0"),
        (48, float("nan"), "blocking_ms must be finite and not negative, is nan"),
        (104, float("inf"), "revoke_ms must be finite and not negative, is inf"),
    ],
)
def test_a_header_of_impossible_numbers_is_a_violation(log_path, offset, value, says) -> None:
    records = split(log_path)
    records[0] = put(records[0], offset, "d", value)
    assert f"header: {says}" in forge(log_path, records)


def test_a_revocation_that_may_take_longer_than_t_is_a_violation(log_path: Path) -> None:
    records = split(log_path)
    at = first(records, REVOKE_BEGUN)
    late_ns = struct.unpack_from("<q", records[at], 24)[0] + 1_000_000
    records[at] = put(records[at], 24, "q", late_ns)
    assert any("the deadline is in 51.0 ms" in one for one in forge(log_path, records))


@pytest.mark.parametrize("deadline_ns", [0, -1, -(1 << 63)])
def test_a_revocation_that_is_late_from_its_beginning_is_a_violation(log_path, deadline_ns) -> None:
    records = split(log_path)
    at = first(records, REVOKE_BEGUN)
    records[at] = put(records[at], 24, "q", deadline_ns)
    assert any("REVOKE_BEGUN: the deadline is in -" in one for one in forge(log_path, records))


def test_a_revocation_of_more_slabs_than_there_are_is_a_violation(log_path: Path) -> None:
    records = split(log_path)
    at = first(records, REVOKE_BEGUN)
    records[at] = put(records[at], 32, "I", 11)
    assert any("revokes 11 slabs, 1 to 10 are" in one for one in forge(log_path, records))


def test_a_start_before_1970_is_a_violation(log_path: Path) -> None:
    records = split(log_path)
    records[1] = put(records[1], 24, "q", -1)
    assert forge(log_path, records) == ["record 1: START: wall_time_ns must not be negative, is -1"]


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (257, "ADMISSION: a prompt of 257 tokens had arrived, but max_request_tokens is 256"),
        (1_000_000_001, "ARRIVED: tokens is 1000000001, above 1000000000"),
    ],
)
def test_a_prompt_longer_than_there_can_be_is_a_violation(log_path: Path, tokens, says) -> None:
    records = split(log_path)
    at = first(records, ARRIVED)
    records[at] = put(records[at], 24, "Q", tokens)
    found = forge(log_path, records)
    assert any(says in one for one in found), found


def test_a_step_without_an_estimate_is_reported_and_not_counted(log_path: Path) -> None:
    records = split(log_path)
    at = first(records, STEP)
    records[at] = put(put(records[at], 32, "d", float("inf")), 40, "d", 6.5)
    log_path.write_bytes(reseal(records))
    verification = verify_log(log_path)
    assert (verification.coverage, verification.unbounded) == (1.0, 1)


def test_slabs_that_serving_gets_without_asking_are_a_violation(log_path: Path) -> None:
    records = split(log_path)
    at = first(records, REVOKE_BEGUN)
    for slabs, says in (
        (1, "serving gets 2 slabs, but was still waiting for 1"),
        (0, "revokes 0 slabs, 1 to 10 are allowed"),
    ):
        forged = [*records[:at], put(records[at], 32, "I", slabs), *records[at + 1 :]]
        assert any(says in one for one in forge(log_path, forged))
    del records[at]
    assert any("was still waiting for 0" in one for one in forge(log_path, records))


def test_a_loan_that_calls_itself_a_take_is_a_violation(log_path: Path) -> None:
    """Without its ADMISSION and its lease it is still a borrower that gets slabs."""
    records = split(log_path)
    del records[first(records, ADMISSION)]
    at = first(records, MOVE, skip=1)
    for kind in (0, 2):
        forged = put(put(records[at], 24, "Q", 0), 52, "I", kind)
        found = forge(log_path, [*records[:at], forged, *records[at + 1 :]])
        assert any("MOVE: " in one and "nobody to a borrower" in one for one in found)


def test_a_loan_without_an_admission_is_a_violation(log_path: Path) -> None:
    records = split(log_path)
    del records[first(records, ADMISSION)]
    assert any("has no admission" in one for one in forge(log_path, records))


@pytest.mark.parametrize(
    ("skip", "field", "says"),
    [
        (0, (48, "I", 11), "gives 11 slabs, but holds 10"),
        (2, (48, "I", 4), "gives 4 slabs, but holds 3"),
        (0, (44, "i", 2), "partition 2 does not exist"),
        (0, (40, "i", -3), "partition -3 does not exist"),
        (2, (32, "Q", 3), "epoch 3 follows epoch 3"),
        (2, (48, "I", 0), "moves 0 slabs"),
        (1, (32, "Q", 4), "epoch 4 follows epoch 2"),
        (0, (52, "I", 6), "no move of kind 6 goes from nobody to serving"),
        (2, (52, "I", 2), "no move of kind 2 goes from a borrower to serving"),
        (0, (24, "Q", 1), "a move of kind 0 from nobody to serving has no lease, lease_id is 1"),
        (1, (24, "Q", 2), "lease 2 follows lease 0"),
        (2, (24, "Q", 2), "lease 2 gives 2 slabs, but holds 0"),
        (3, (44, "i", 1), "goes from a borrower to a borrower"),
    ],
)
def test_slabs_out_of_nowhere_are_a_violation(log_path: Path, skip, field, says) -> None:
    records = split(log_path)
    at = first(records, MOVE, skip=skip)
    records[at] = put(records[at], *field)
    found = forge(log_path, records)
    assert any(says in one for one in found), found


def test_coverage_is_the_share_of_steps_within_their_estimate(log_path: Path) -> None:
    records = split(log_path)
    at = first(records, STEP)
    records[at] = put(records[at], 40, "d", 1e6)
    log_path.write_bytes(reseal(records))
    assert verify_log(log_path).coverage == 2 / 3


def test_two_borrowers_may_be_admitted_in_one_epoch_and_one_gets_it(log_path: Path) -> None:
    records = split(log_path)
    at = first(records, ADMISSION)
    other = put(put(records[at], 64, "I", 2), 56, "q", SLACK + 8)
    assert forge(log_path, [*records[: at + 1], other, *records[at + 1 :]]) == []


def test_start_and_end_are_where_they_belong(log_path: Path) -> None:
    records = split(log_path)
    assert any("begin with START" in one for one in forge(log_path, [records[0], *records[2:]]))
    middle = [*records[:3], put(records[-1], 16, "q", 0), *records[3:]]
    middle[3] = middle[3][:16] + records[2][16:24] + middle[3][24:]
    assert any("END in the middle" in one for one in forge(log_path, middle))


def test_a_record_that_is_missing_without_another_trace_shows_in_the_counts(log_path) -> None:
    records = split(log_path)
    del records[first(records, STEP)]
    log_path.write_bytes(reseal(records))
    assert verify_log(log_path).violations == [
        f"record {len(records) - 1}: END: STEP is counted 3 times, the log has 2 of them"
    ]
