"""What can be said of the kernels without a GPU: barriers whose lack a checker of races finds.

No row is a time. ThreadSanitizer runs every kernel on the CPU again for each barrier, with that
barrier left out; one that is missed separates nothing, or the checker does not see it.
"""

from pathlib import Path

from bench.conftest import Report
from bench.rows import Bar
from tests.kernels import races


def test_barriers_that_prevent_a_race(report: Report, tmp_path: Path) -> None:
    """All kernels once with all barriers, then once without each."""
    barriers = sorted(races.barriers() - races.VOTES)
    tried = barriers[: report.count(len(barriers), at_least=1)]
    found: list[races.Found] = []

    def run() -> None:
        found.append(races.run(races.build(tmp_path / "races"), tried))

    report.once(run)
    report.add("races", found[0].races, "races", bar=Bar(at_most=0))
    report.add("race_barriers_found", len(found[0].found), "barriers", bar=Bar(at_least=len(tried)))
    report.add("race_barriers_total", len(tried), "barriers")
