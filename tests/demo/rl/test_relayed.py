"""What relays moved adds up over all their lives."""

import pytest

from rose.demo.rl.relayed import RelayedBytes


def test_sum_goes_on_when_a_relay_begins_from_nothing() -> None:
    moved = RelayedBytes()
    moved.begin()
    moved.hear('{"crossing_bytes": 10, "sent_bytes": 20}')
    moved.hear('{"crossing_bytes": 11, "sent_bytes": 25}')
    assert (moved.crossing_bytes, moved.sent_bytes) == (11, 25)
    moved.begin()
    assert (moved.crossing_bytes, moved.sent_bytes) == (11, 25)
    moved.hear('{"crossing_bytes": 1, "sent_bytes": 2}')
    assert (moved.crossing_bytes, moved.sent_bytes) == (12, 27)


@pytest.mark.parametrize(
    "line", ["", "I1122 grpc says something", "[1]", '{"crossing_bytes": "1"}']
)
def test_line_that_is_no_figure_says_nothing(line: str) -> None:
    moved = RelayedBytes()
    moved.hear(line)
    assert (moved.crossing_bytes, moved.sent_bytes) == (0, 0)
