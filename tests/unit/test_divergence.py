"""Which replicas differ, by the digests in a round of records, and what is said of it."""

from __future__ import annotations

import pytest

from edl.protocol.divergence import (
    Divergence,
    Resync,
    Subject,
    choose_resync,
    differences,
    explain,
    find_divergence,
)
from edl.protocol.ledger import MapLedger
from edl.protocol.progress import Progress
from edl.protocol.record import Kind, StepRecord
from edl.types import WorkerId
from tests.seeded.cast import first, names, record, w


def round_of(*records: StepRecord) -> dict[WorkerId, StepRecord]:
    return {w(number): each for number, each in enumerate(records)}


def settings(*digests: int, kind: int = Kind.STEP) -> dict[WorkerId, StepRecord]:
    return round_of(*(record(step=7, kind=kind, settings_digest=digest) for digest in digests))


def test_equal_digests_are_no_divergence() -> None:
    assert find_divergence(settings(5, 5, 5)) == ()


def test_the_minority_differs() -> None:
    (found,) = find_divergence(settings(5, 9, 9))
    assert found == Divergence(
        subject=Subject.SETTINGS,
        step=7,
        reference=w(1),
        differing=names(0),
        agreeing=names(1, 2),
    )


def test_without_a_majority_the_lowest_rank_is_right() -> None:
    (found,) = find_divergence(settings(5, 9))
    assert (found.reference, found.differing) == (w(0), names(1))
    (found,) = find_divergence(settings(5, 9, 8, 9))
    assert (found.reference, found.differing) == (w(0), names(1, 2, 3))


def test_a_digest_that_is_not_known_is_not_compared() -> None:
    assert find_divergence(settings(0, 5, 0)) == ()
    (found,) = find_divergence(settings(0, 5, 6))
    assert (found.reference, found.differing) == (w(1), names(2))


def test_a_joiner_is_not_compared_in_its_first_round() -> None:
    records = round_of(
        record(step=7, settings_digest=5, state_digest=6),
        record(step=7, settings_digest=5, state_digest=6),
        record(kind=Kind.JOIN, settings_digest=1, state_digest=1),
    )
    assert find_divergence(records) == ()


def test_a_loops_end_is_compared_with_loops_ends_only() -> None:
    step, close = record(step=7, state_digest=1), record(step=7, kind=Kind.CLOSE, state_digest=2)
    assert find_divergence(round_of(step, close)) == ()
    other = record(step=7, kind=Kind.CLOSE, state_digest=3)
    (found,) = find_divergence(round_of(step, close, other))
    assert (found.subject, found.reference, found.differing) == (Subject.STATE, w(1), names(2))


@pytest.mark.parametrize("kind", [Kind.REDUCE, Kind.COUNT])
def test_other_rounds_carry_no_digests(kind: Kind) -> None:
    assert find_divergence(settings(5, 9, kind=kind)) == ()


def test_every_worker_comes_to_the_same_conclusion() -> None:
    ledger = MapLedger(samples=60, batch=6, seed=0, epochs=1, shuffle=True, drop_last=False)
    records = [record(samples=2, settings_digest=4, state_digest=digest) for digest in (7, 8, 7)]
    said = [
        Progress(me=w(number), generation=first(0, 1, 2), ledger=ledger).judge(records)
        for number in range(3)
    ]
    assert said[0].go
    assert [each.diverged for each in said] == [said[0].diverged] * 3
    assert said[0].diverged[0].differing == names(1)


def test_an_explanation_names_worker_value_and_expected_value() -> None:
    found = Divergence(subject=Subject.SETTINGS, step=7, reference=w(0), differing=names(2))
    items = {
        w(0): [("optimizer 0 group 0 lr", "0.1"), ("optimizer 0 group 0 momentum", "0.9")],
        w(1): [("optimizer 0 group 0 lr", "0.1"), ("optimizer 0 group 0 momentum", "0.9")],
        w(2): [("optimizer 0 group 0 lr", "0.5"), ("optimizer 0 group 0 momentum", "0.9")],
    }
    assert [each.name for each in differences(found, items)] == ["optimizer 0 group 0 lr"]
    assert explain(found, items) == (
        "replicas diverged at step 7: w2 differs from w0 in optimizer 0 group 0 lr "
        "(0.5 on w2, 0.1 on w0)"
    )


def test_an_explanation_of_state_names_the_arrays() -> None:
    found = Divergence(subject=Subject.STATE, step=7, reference=w(0), differing=names(1, 2))
    mine = [(f"layer{n}.weight", "aa") for n in range(7)]
    theirs = [(f"layer{n}.weight", "bb") for n in range(7)]
    text = explain(found, {w(0): mine, w(1): theirs, w(2): theirs})
    assert text.startswith("replicas diverged at step 7: w1, w2 differ from w0 in layer0.weight;")
    assert text.endswith("layer3.weight; and 3 more")


def test_an_explanation_without_values_still_says_who() -> None:
    found = Divergence(subject=Subject.STATE, step=7, reference=w(0), differing=names(1))
    assert explain(found, {}) == (
        "replicas diverged at step 7: w1 differs from w0 in parameters or optimizer state"
    )


def resync_of(*digests: tuple[int, int]) -> Resync:
    """Of settings and state, as each worker has them."""
    records = (record(step=7, settings_digest=a, state_digest=b) for a, b in digests)
    return choose_resync(find_divergence(round_of(*records)))


def test_a_resync_has_a_source_that_differs_in_nothing() -> None:
    # w2 differs in settings and w0 in state; w0 is the reference of the settings.
    assert resync_of((5, 9), (5, 8), (6, 8)) == Resync(source=w(1), targets=names(2, 0))


def test_a_resync_takes_the_reference_where_it_is_right_in_everything() -> None:
    assert resync_of((5, 8), (6, 8), (5, 8)) == Resync(source=w(0), targets=names(1))
    assert resync_of((6, 8), (5, 8), (5, 8), (5, 9)) == Resync(source=w(1), targets=names(0, 3))


def test_a_resync_without_a_worker_that_is_right_in_everything_keeps_the_majoritys_state() -> None:
    # Settings: no majority, so w0 is right. State: w0 alone differs.
    chosen = resync_of((5, 9), (6, 8), (7, 8))
    assert (chosen.source, sorted(chosen.targets)) == (w(1), sorted(names(0, 2)))


def test_a_worker_whose_state_is_not_known_is_no_source_for_state() -> None:
    # w0's state was not digested in this round.
    assert resync_of((5, 0), (5, 8), (6, 8), (5, 9)).source == w(1)
