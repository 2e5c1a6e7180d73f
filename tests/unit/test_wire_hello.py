"""Nobody gets in without the secret, and nothing but the handshake is parsed before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import PeerError, UsageError, WrongSecret
from edl.wire.hello import GREETING, HELLO_BYTES, MAGIC, Hello, Role


def hello(
    role: Role, *, job: str = "mnist", secret: bytes = b"s3cret", nonce: int = 1, version: int = 1
) -> Hello:
    return Hello(role, job=job, secret=secret, nonce=bytes([nonce]) * 32, version=version)


def meet(one: Hello, other: Hello) -> None:
    """Carry bytes both ways until both are done."""
    to_other, to_one = other.feed(one.greeting), one.feed(other.greeting)
    assert one.feed(to_other) == b""
    assert other.feed(to_one) == b""


def test_two_sides_with_the_secret_meet() -> None:
    dial, listen = hello("dial", nonce=1), hello("listen", nonce=2)
    meet(dial, listen)
    assert dial.done
    assert listen.done
    assert dial.wanted == listen.wanted == 0


def test_bytes_may_arrive_one_by_one_and_never_more_than_wanted_is_needed() -> None:
    dial, listen = hello("dial", nonce=1), hello("listen", nonce=2)
    answer = b""
    for byte in dial.greeting:
        answer += listen.feed(bytes([byte]))
    proof = dial.feed(listen.greeting)
    for byte in proof:
        assert not listen.done
        listen.feed(bytes([byte]))
    dial.feed(answer)
    assert dial.done
    assert listen.done
    assert len(dial.greeting) + len(proof) == HELLO_BYTES


def test_a_wrong_secret_is_refused_by_both_sides() -> None:
    dial, listen = hello("dial", secret=b"a", nonce=1), hello("listen", secret=b"b", nonce=2)
    to_dial, to_listen = listen.feed(dial.greeting), dial.feed(listen.greeting)
    with pytest.raises(WrongSecret, match="mnist"):
        dial.feed(to_dial)
    with pytest.raises(WrongSecret, match="mnist"):
        listen.feed(to_listen)
    assert not dial.done
    assert not listen.done


def test_another_job_is_refused_although_the_secret_is_the_same() -> None:
    with pytest.raises(WrongSecret, match="another job than 'mnist'"):
        hello("listen", job="mnist").feed(hello("dial", job="other").greeting)


def test_another_version_is_named() -> None:
    with pytest.raises(PeerError, match="version 2, this side 1"):
        hello("listen").feed(hello("dial", version=2).greeting)


def test_a_stranger_is_recognised_by_its_first_bytes() -> None:
    with pytest.raises(PeerError, match="does not speak"):
        hello("listen").feed(b"GET ")


@pytest.mark.parametrize("role", ["dial", "listen"])
def test_our_own_bytes_sent_back_prove_nothing(role: Role) -> None:
    side = hello(role)
    with pytest.raises(WrongSecret):
        side.feed(side.feed(side.greeting))


def test_two_dialers_do_not_meet() -> None:
    with pytest.raises(WrongSecret):
        meet(hello("dial", nonce=1), hello("dial", nonce=2))


def test_an_old_recording_proves_nothing() -> None:
    dial, listen = hello("dial", nonce=1), hello("listen", nonce=2)
    listen.feed(dial.greeting)
    proof = dial.feed(listen.greeting)
    listen.feed(proof)
    later = hello("listen", nonce=3)
    later.feed(dial.greeting)
    with pytest.raises(WrongSecret):
        later.feed(proof)


def test_a_truncated_handshake_is_never_done() -> None:
    dial, listen = hello("dial", nonce=1), hello("listen", nonce=2)
    listen.feed(dial.greeting)
    listen.feed(dial.feed(listen.greeting)[:-1])
    assert not listen.done
    assert listen.wanted == 1


def test_more_than_the_handshake_is_not_taken() -> None:
    with pytest.raises(PeerError, match="longer"):
        hello("listen").feed(hello("dial").greeting + b"x")


def test_an_empty_secret_is_no_secret() -> None:
    with pytest.raises(UsageError, match="empty"):
        hello("dial", secret=b"")


@given(st.binary(max_size=2 * HELLO_BYTES))
def test_garbage_never_does_more_than_raise(noise: bytes) -> None:
    side = hello("listen")
    try:
        while noise and side.wanted:
            taken, noise = noise[: side.wanted], noise[side.wanted :]
            side.feed(taken)
    except PeerError:
        pass
    assert not side.done


@given(st.integers(0, 31), st.integers(1, 255))
def test_one_wrong_bit_in_the_proof_is_enough(position: int, change: int) -> None:
    dial, listen = hello("dial", nonce=1), hello("listen", nonce=2)
    listen.feed(dial.greeting)
    proof = bytearray(dial.feed(listen.greeting))
    proof[position] ^= change
    with pytest.raises(WrongSecret):
        listen.feed(bytes(proof))


def test_the_greeting_starts_with_the_magic_and_holds_no_secret() -> None:
    greeting = hello("dial").greeting
    assert greeting.startswith(MAGIC)
    assert len(greeting) == GREETING.size
    assert b"s3cret" not in greeting
