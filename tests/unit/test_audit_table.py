"""What `edl audit` shows of a long job: epochs that are alike share a row, and no other does."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from edl.cli.audit import _table
from edl.runtime.auditing import Audit, EpochAudit

EPOCH = EpochAudit(
    epoch=0,
    state="complete",
    steps=5,
    samples=40,
    used=40,
    twice=0,
    never=0,
    earlier=0,
    fault="",
)


def shown(*epochs: EpochAudit) -> list[list[str]]:
    found = Audit(epochs=epochs, steps=5 * len(epochs), logs=("w0",), torn=(), fault="")
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(_table(found))
    return [line.split() for line in capture.get().splitlines()[3:] if line.strip()]


def test_epochs_that_are_alike_share_a_row() -> None:
    alike = [replace(EPOCH, epoch=number) for number in range(1000)]
    (row,) = shown(*alike)
    assert row == ["0", "to", "999,", "each", "complete", "5", "40", "40", "0", "0"]


def test_an_epoch_that_differs_has_its_own() -> None:
    odd = replace(EPOCH, epoch=2, twice=1, used=42, fault="sample 3 was used twice")
    last = replace(EPOCH, epoch=4, state="unfinished", steps=2, used=16, never=24)
    rows = shown(EPOCH, replace(EPOCH, epoch=1), odd, replace(EPOCH, epoch=3), last)
    assert [row[0] for row in rows] == ["0", "2", "3", "4"]
    assert rows[0][:4] == ["0", "to", "1,", "each"]
    assert rows[1] == ["2", "complete", "5", "40", "40", "1", "0"]
