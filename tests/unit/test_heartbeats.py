"""How soon a watchdog speaks for a worker whose agent does not run."""

from __future__ import annotations

import pytest

from edl.config import Settings
from edl.runtime.heartbeats import Charge
from edl.runtime.watchdog import MISSED_BEATS


def charge(settings: Settings) -> Charge:
    return Charge(
        job="job",
        worker="w2",
        pid=1,
        secret="00",
        store="edl://127.0.0.1:1",
        lease="w2-1",
        lease_s=settings.lease_s,
        silence_s=settings.silence_s,
        reconnect_s=settings.reconnect_s,
        unresponsive_s=settings.unresponsive_s,
    )


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(lease_s=30.0, silence_s=120.0),
        Settings(lease_s=1.0, silence_s=3.0, reconnect_s=0.5),
        Settings(lease_s=2.5, silence_s=60.0, reconnect_s=1.0),
    ],
)
def test_half_the_time_of_each_limit_is_left_when_the_watchdog_begins_to_speak(
    settings: Settings,
) -> None:
    speaks_after_s = MISSED_BEATS * charge(settings).beat_s
    limits = (settings.lease_s, settings.silence_s, settings.reconnect_s)
    assert speaks_after_s <= min(limits) / 2


def test_no_time_to_reconnect_means_no_endless_signs_of_life() -> None:
    assert charge(Settings(reconnect_s=0.0)).beat_s > 0
