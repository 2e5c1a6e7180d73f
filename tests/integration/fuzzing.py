"""What the fuzzing tests share: settings that repeat themselves, and ways to spoil real bytes."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["JSON", "damaged", "fuzzed"]

# The same examples in every run, so that a change is to blame when one of them fails.
fuzzed = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=150,
    suppress_health_check=list(HealthCheck),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Real bytes with a few of them changed, cut off, repeated or put in."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "cut", "insert", "repeat"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at : at + draw(st.integers(1, 64))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case _:
                data[at:at] = data[max(0, at - 32) : at]
    return bytes(data)
