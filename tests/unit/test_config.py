"""Settings travel through the environment, and nonsense in it is refused."""

from __future__ import annotations

from dataclasses import fields

import pytest

from edl.config import Settings
from edl.errors import UsageError


def test_settings_survive_the_environment() -> None:
    changed = Settings(switch_allowance_s=0.25, max_workers=7)
    assert Settings.from_environment(changed.to_environment()) == changed


def test_every_field_has_its_variable() -> None:
    expected = {f"EDL_{field.name.upper()}" for field in fields(Settings)}
    assert set(Settings().to_environment()) == expected


def test_an_empty_environment_is_the_default() -> None:
    assert Settings.from_environment({"PATH": "/bin"}) == Settings()


@pytest.mark.parametrize("text", ["soon", "", "1e", "None"])
def test_what_is_no_number_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"EDL_LEASE_S=.*not float.*2\.5"):
        Settings.from_environment({"EDL_LEASE_S": text})


def test_a_broken_count_is_refused() -> None:
    with pytest.raises(UsageError, match=r"EDL_MIN_WORKERS='1\.5' is not int"):
        Settings.from_environment({"EDL_MIN_WORKERS": "1.5"})


@pytest.mark.parametrize("text", ["-1", "nan"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not 0 or more"):
        Settings.from_environment({"EDL_LEASE_S": text})


def test_a_policy_for_stragglers_travels_too() -> None:
    changed = Settings(stragglers="rebalance", straggler_factor=1.5, straggler_steps=20)
    assert Settings.from_environment(changed.to_environment()) == changed


def test_what_is_no_policy_for_stragglers_is_refused() -> None:
    with pytest.raises(UsageError, match="EDL_STRAGGLERS='kill' is no policy; give one of off,"):
        Settings.from_environment({"EDL_STRAGGLERS": "kill"})
