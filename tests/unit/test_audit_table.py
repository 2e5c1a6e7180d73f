"""What `edl audit` shows: one row for epochs that are alike, and a verdict in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from edl.cli.audit import _table, _verdict
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
    unused=0,
    fault="",
)


EARLY = replace(EPOCH, epoch=1, state="left early", steps=4, used=34, unused=6)


def audit_of(*epochs: EpochAudit) -> Audit:
    return Audit(epochs=epochs, steps=5 * len(epochs), logs=("w0",), torn=(), fault="")


def shown(*epochs: EpochAudit) -> list[list[str]]:
    found = audit_of(*epochs)
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(_table(found))
    return [line.split() for line in capture.get().splitlines()[3:] if line.strip()]


def test_epochs_that_are_alike_share_a_row() -> None:
    alike = [replace(EPOCH, epoch=number) for number in range(1000)]
    (row,) = shown(*alike)
    assert row == ["1", "to", "1000,", "each", "complete", "5", "40", "40", "0", "0", "0"]


def test_an_epoch_that_differs_has_its_own() -> None:
    odd = replace(EPOCH, epoch=2, twice=1, used=42, fault="sample 3 was used twice")
    last = replace(EPOCH, epoch=4, state="unfinished", steps=2, used=16, never=24)
    rows = shown(EPOCH, replace(EPOCH, epoch=1), odd, replace(EPOCH, epoch=3), last)
    assert [row[0] for row in rows] == ["1", "3", "4", "5"]
    assert rows[0][:4] == ["1", "to", "2,", "each"]
    assert rows[1] == ["3", "complete", "5", "40", "40", "1", "0", "0"]


def test_an_epoch_that_was_left_early_shows_how_many_samples_it_left() -> None:
    assert shown(EARLY) == [["2", "left", "early", "4", "40", "34", "0", "6", "0"]]


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        ((EPOCH,), "exactly once: 5 steps in 1 epoch, by the log of w0"),
        (
            (EPOCH, EARLY),
            (
                "at most once: 6 samples of epoch 2 were left unused, since the script ended it "
                "early; 10 steps in 2 epochs, by the log of w0"
            ),
        ),
        (
            (EARLY, replace(EARLY, epoch=2), EPOCH),
            (
                "at most once: 12 samples of 2 epochs were left unused, since the script ended "
                "them early; 15 steps in 3 epochs, by the log of w0"
            ),
        ),
        (
            (EPOCH, replace(EARLY, state="unfinished")),
            "exactly once, as far as it came: 10 steps in 2 epochs, by the log of w0",
        ),
    ],
)
def test_exactly_once_is_not_said_of_a_job_that_left_samples_unused(
    epochs: tuple[EpochAudit, ...], said: str
) -> None:
    assert _verdict(audit_of(*epochs)) == said
