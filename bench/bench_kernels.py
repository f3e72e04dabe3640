"""Facts about the kernels that need no GPU: their barriers, and the cost of their machine code.

No row is a time. For each barrier, every kernel runs again on the CPU under ThreadSanitizer,
without that barrier. If no race is reported, the barrier separates nothing, or the checker cannot
see the race.
"""

from pathlib import Path

from bench.conftest import Report
from bench.rows import Bar
from tests.kernels import races, sass_figures
from tests.kernels.sass import needs_sass
from tests.kernels.sass_figures import Figures, StaticFigures


def test_barriers_that_prevent_a_race(report: Report, tmp_path: Path) -> None:
    """Run all kernels once with all barriers, then once without each barrier."""
    barriers = sorted(races.barriers())
    tried = barriers[: report.count(len(barriers), at_least=1)]
    found: list[races.Found] = []

    def run() -> None:
        found.append(races.run(races.build(tmp_path / "races"), tried))

    report.once(run)
    report.add("races", found[0].races, "races", bar=Bar(at_most=0))
    report.add("race_barriers_found", len(found[0].found), "barriers", bar=Bar(at_least=len(tried)))
    report.add("race_barriers_total", len(tried), "barriers")


@needs_sass
def test_machine_code(report: Report, tmp_path: Path) -> None:
    """Run every kernel of the table on one delta block of bf16 weights of which 1 % changed."""
    found: dict[str, Figures] = {}
    static: dict[int, dict[str, StaticFigures]] = {}

    def run() -> None:
        for architecture in sass_figures.ARCHITECTURES:
            static[architecture] = {
                name: sass_figures.count(name, tmp_path, architecture)
                for name in sass_figures.LAUNCHES
            }
        step = sass_figures.Step.draw(sass_figures.BLOCK)
        for _, name, _ in sass_figures.KERNELS:
            found[name] = sass_figures.measure(name, tmp_path, step)

    report.once(run)
    pack = found[sass_figures.PACK]
    of = "instructions"
    report.add("sass_pack_load_loop_per_256", pack.load_loop_per_256, of, bar=Bar(at_most=100))
    report.add("sass_pack_total_per_256", pack.total_per_256, of, bar=Bar(at_most=200))
    packs = {architecture: one[sass_figures.PACK] for architecture, one in static.items()}
    for architecture, (loop, total) in sass_figures.estimate(pack, packs).items():
        if architecture != sass_figures.RUN:
            row = f"sass_pack_{{}}_per_256_sm_{architecture}_estimated"
            report.add(row.format("load_loop"), loop, of, bar=Bar(at_most=100))
            report.add(row.format("total"), total, of, bar=Bar(at_most=200))
    topk = found["delta_pack_flat_64k_kernel, top-k"]
    report.add("sass_topk_pack_total_per_256", topk.total_per_256, of, bar=Bar(at_most=200))
    in_flight = min(one.loads_in_flight for one in packs.values())
    report.add("sass_pack_loads_in_flight", in_flight, "loads", bar=Bar(at_least=8))
    report.add("apply_barriers_per_block", found["delta_apply_kernel"].barriers, "barriers")
    kernels = [one for of_device in static.values() for one in of_device.values()]
    occupancy = min(one.occupancy for one in kernels)
    report.add("occupancy_min", occupancy, "ratio", bar=Bar(at_least=0.5))
    spills = sum(one.spill_bytes for one in kernels)
    report.add("spills", spills, "bytes", bar=Bar(at_most=0))
