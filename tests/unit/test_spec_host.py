"""The address that launcher and workers listen on."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.launch.base import JobSpec


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "::0", "0:0:0:0:0:0:0:0", "*", "0", ""])
def test_address_that_nobody_can_dial_is_refused_with_what_to_give(host: str) -> None:
    with pytest.raises(UsageError, match="address of this machine that the other machines reach"):
        JobSpec(script="train.py", workers=1, host=host).check()


def test_address_of_one_interface_is_accepted() -> None:
    JobSpec(script="train.py", workers=1, host="10.0.0.7").check()
