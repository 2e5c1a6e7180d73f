"""However the network cuts a stream, the same payloads come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import PeerError, UsageError
from edl.wire.stream import FrameReader, frame


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(1, 20)))
def test_cuts_do_not_matter(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload, max_frame=50) for payload in payloads)
    reader = FrameReader(50)
    seen: list[bytes] = []
    for cut in [*cuts, len(stream) or 1]:
        seen += [bytes(payload) for payload in reader.feed(stream[:cut])]
        stream = stream[cut:]
    assert seen == payloads
    assert not reader.inside


def test_a_frame_above_the_limit_is_refused_by_its_header_alone() -> None:
    with pytest.raises(PeerError, match="101"):
        list(FrameReader(100).feed((101).to_bytes(4, "big")))


def test_a_message_above_the_limit_is_not_sent() -> None:
    with pytest.raises(UsageError, match="limit of 100"):
        frame(b"x" * 101, max_frame=100)


def test_a_stream_cut_inside_a_frame_is_known_to_be() -> None:
    reader = FrameReader(100)
    assert list(reader.feed(frame(b"whole", max_frame=100)[:-1])) == []
    assert reader.inside
