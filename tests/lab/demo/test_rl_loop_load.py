"""What the demo makes of an RL loop that does not end as it should."""

from types import SimpleNamespace

from rose.clock import BootClock
from rose.errors import DeadlineExceeded
from rose_lab.demo.rl.history import History
from rose_lab.demo.workload import RlLoopLoad


def test_what_does_not_end_is_an_incident_and_the_report_still_comes() -> None:
    def stop() -> None:
        raise DeadlineExceeded("the rollouts have not ended")

    load = object.__new__(RlLoopLoad)
    load.rl_loop = SimpleNamespace(stop=stop, history=History(BootClock()))
    load.stop()
    ((_, said),) = load.rl_loop.history.incidents
    assert said == "the rollouts have not ended"
