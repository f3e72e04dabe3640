"""The ration of probes: a share of idle time, by whether quanta are refused for a shape."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.executor.probing import ProbeRation, Seen
from rose.units import NS_PER_MS, NS_PER_S

LOOK_NS = 20 * NS_PER_MS
LENDING = Seen(is_idle=True, granted=5, refused=0, binding=None)


class Device:
    """A device in virtual time that looks every 20 ms and runs each probe that is due."""

    def __init__(self, *, probe_ms: float, wanted: int = 10) -> None:
        self.ration = ProbeRation(wanted=wanted)
        self.probe_ms = probe_ms
        self.now_ns = 0
        self.idle_ns = 0
        self.probed = {"step": 0, "chunk": 0}

    @property
    def probed_ns(self) -> float:
        return sum(self.probed.values()) * self.probe_ms * NS_PER_MS

    def run(self, seen: Seen, *, for_s: float, is_refused: bool = False) -> Seen:
        until_ns = self.now_ns + int(for_s * NS_PER_S)
        while self.now_ns < until_ns:
            if is_refused:
                seen = replace(seen, refused=seen.refused + 1)
            shape = self.ration.due(self.now_ns, seen)
            if shape is not None:
                self.probed[shape] += 1
                self.now_ns += int(self.probe_ms * NS_PER_MS)
                self.ration.stepped()
                self.ration.probed(shape, self.probe_ms * NS_PER_MS)
            self.now_ns += LOOK_NS
            self.idle_ns += LOOK_NS
        return seen


def test_while_a_shape_is_refused_probes_of_it_take_a_quarter_of_idle_time() -> None:
    device = Device(probe_ms=100, wanted=10**6)
    device.run(replace(LENDING, binding="chunk"), for_s=100, is_refused=True)
    assert device.probed["step"] == 0
    assert device.probed_ns == pytest.approx(0.25 * device.idle_ns, rel=0.1)


def test_while_quanta_are_granted_probes_of_both_shapes_take_half_a_percent() -> None:
    device = Device(probe_ms=100)
    device.run(LENDING, for_s=4000)
    assert abs(device.probed["step"] - device.probed["chunk"]) <= 1
    assert device.probed_ns == pytest.approx(0.005 * device.idle_ns, rel=0.1)


def test_a_segment_that_is_too_long_is_no_reason_to_search() -> None:
    device = Device(probe_ms=100)
    device.run(replace(LENDING, binding=None), for_s=4000, is_refused=True)
    assert device.probed_ns == pytest.approx(0.005 * device.idle_ns, rel=0.1)


def test_each_round_that_changed_nothing_halves_the_share_down_to_that_of_renewal() -> None:
    device = Device(probe_ms=100, wanted=10)
    seen = replace(LENDING, binding="step")
    shares = []
    for _ in range(8000):
        seen = device.run(seen, for_s=0.1, is_refused=True)
        if not shares or shares[-1] != device.ration.share:
            shares.append(device.ration.share)
    assert shares == [0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.005]
    # A quantum ends the search, and the next refusal begins it anew.
    seen = device.run(replace(seen, granted=6), for_s=0.1)
    assert device.ration.share == 0.005
    device.run(seen, for_s=0.1, is_refused=True)
    assert device.ration.share == 0.25


def test_time_in_which_steps_began_is_no_idle_time() -> None:
    ration = ProbeRation(wanted=10)
    assert ration.due(0, LENDING) is None
    ration.stepped()
    assert ration.due(10 * NS_PER_S, LENDING) is None
    assert ration.due(10 * NS_PER_S + LOOK_NS, LENDING) is not None


def test_a_warm_up_puts_the_next_probe_off_for_a_bounded_time() -> None:
    device = Device(probe_ms=100)
    for _ in range(1000):
        device.ration.probed("chunk", 0.1 * NS_PER_S)
    device.run(replace(LENDING, binding="chunk"), for_s=17, is_refused=True)
    assert device.probed["chunk"] > 0


@given(
    probe_ms=st.floats(1, 3000),
    spans=st.lists(
        st.tuples(st.booleans(), st.booleans(), st.floats(0.01, 5)), min_size=1, max_size=40
    ),
)
def test_probes_take_at_most_their_share_what_was_saved_up_and_one_more(probe_ms, spans) -> None:
    device = Device(probe_ms=probe_ms)
    seen = replace(LENDING, binding="chunk")
    idle_ns = 0
    for is_idle, is_refused, for_s in spans:
        before_ns = device.idle_ns
        seen = device.run(replace(seen, is_idle=is_idle), for_s=for_s, is_refused=is_refused)
        idle_ns += (device.idle_ns - before_ns) * is_idle
        allowed_ns = 0.25 * idle_ns + 100 * NS_PER_MS + probe_ms * NS_PER_MS
        assert device.probed_ns <= allowed_ns
