"""`edl.all_reduce` for every plug-in: the same value on every worker, of everyone's.

Holds: two different calls never meet, for the round that everybody takes part in first says what is
reduced; a call that counts for nobody gives back what it was given.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from edl.errors import UsageError
from edl.runtime.framework import Group
from edl.runtime.session import Session

__all__ = ["combine"]

_OPS = ("mean", "sum", "max", "min")
_Value = TypeVar("_Value")


def combine(
    session: Session,
    op: str,
    about: str,
    copied: Callable[[], _Value],
    row: Callable[[_Value], Any],
    divided: Callable[[_Value, int], _Value],
) -> _Value:
    """The mean, sum, maximum or minimum.

    `about` says what is reduced, its dtype and shape; `copied` makes a copy that may be changed,
    `row` is that copy's memory as the group takes it, and `divided` makes a mean of a sum.
    """
    if op not in _OPS:
        raise UsageError(f"op={op!r} is not one of {', '.join(_OPS)}")
    digest = hashlib.blake2b(f"{op}/{about}".encode(), digest_size=7).digest()

    def reduce(group: Group) -> _Value:
        result = copied()
        if group.size == 1:
            return result
        group.all_reduce(row(result), "sum" if op == "mean" else op).wait()
        return divided(result, group.size) if op == "mean" else result

    reduced = session.reduce(int.from_bytes(digest, "little"), reduce)
    if reduced is None:
        return copied()
    # A copy: the session may need the result again after a failure, and scripts change theirs.
    result: _Value = copy.deepcopy(reduced)
    return result
