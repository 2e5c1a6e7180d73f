"""How long a job of a Pollux workload takes alone, which its own file does not say.

The answer is a measured table, `standalone.csv`: seconds of each application with each batch on p
GPUs. Where p was measured, the time is that one. Between two measured numbers the speed (one job in
so many seconds) lies on a straight line; beyond them it is that of the nearest, for nobody knows
better. Where one number of GPUs was measured on several numbers of nodes, the fewest count: jobs
run packed.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

from edl.errors import UsageError
from edl.simulator.trace_file import blame, number, read_table, whole

__all__ = ["Alone", "needless"]

COLUMNS = ("application", "batch_size", "num_gpus", "num_nodes", "seconds_alone")
FILE = "standalone.csv"


def needless(trace: str | Path, kind: str) -> UsageError:
    return UsageError(
        f"{trace} is {kind}, which says itself how long jobs run; a table of times alone "
        "(--standalone) is for Pollux workloads"
    )


@dataclass(frozen=True, slots=True)
class Alone:
    path: str
    with_speeds: bool  # the table has samples a second too
    _times: dict[tuple[str, int], list[tuple[int, float]]]  # by GPUs

    @staticmethod
    def beside(workload: str, given: str | Path | None) -> Alone:
        """The file that was given, else the one in the workload's folder."""
        source = Path(workload).parent / FILE if given is None else given
        if given is None and not Path(source).is_file():
            raise UsageError(
                f"{workload}: a Pollux workload does not say how long its jobs run, and its folder "
                f"has no {FILE} to look that up; name a table with the columns "
                f"{','.join(COLUMNS)} by --standalone FILE (in Python: standalone=)"
            )
        table = read_table(source)
        table.need(COLUMNS, "a table of times alone")
        # (GPUs -> (nodes, seconds)) of each application and batch.
        packed: dict[tuple[str, int], dict[int, tuple[int, float]]] = {}
        for line, row in table.rows():
            batch, gpus, nodes = (
                whole(table.path, line, name, table.cell(row, name), at_least=1)
                for name in COLUMNS[1:4]
            )
            text, expected = table.cell(row, COLUMNS[4]), "a number of seconds above 0"
            seconds = number(table.path, line, COLUMNS[4], text, expected=expected)
            if seconds <= 0:
                raise blame(table.path, line, f"{COLUMNS[4]} is {text!r}; expected {expected}")
            times = packed.setdefault((table.cell(row, "application"), batch), {})
            times[gpus] = min(times.get(gpus, (nodes, seconds)), (nodes, seconds))
        return Alone(
            table.path,
            "samples_per_sec" in table.columns,
            {
                key: [(gpus, times[gpus][1]) for gpus in sorted(times)]
                for key, times in packed.items()
            },
        )

    def seconds(
        self, path: str, line: int, application: str, batch: int, gpus: int
    ) -> tuple[float, bool]:
        """And whether they were measured on this very number of GPUs."""
        times = self._times.get((application, batch))
        if times is None:
            raise blame(
                path,
                line,
                f"{application!r} with batch {batch} was not measured; expected a row of it in "
                f"{self.path}",
            )
        place = bisect_left(times, (gpus, 0.0))
        if place == len(times):
            return times[-1][1], False
        above, seconds = times[place]
        if above == gpus or not place:
            return seconds, above == gpus
        below, slower = times[place - 1]
        share = (gpus - below) / (above - below)
        return 1 / ((1 - share) / slower + share / seconds), False
