"""A process that asks to be let in: its variables are judged before the job hears of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edl.errors import UsageError
from edl.protocol.election import Known
from edl.runtime import joining
from edl.runtime.identity import identify
from edl.types import Address, WorkerId

# RFC 5737 keeps this for documentation, so it is no address of this machine.
ELSEWHERE = "203.0.113.9"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "secret").write_text("00" * 32)
    return {
        "EDL_JOIN": "1",
        "EDL_JOB": "wide",
        "EDL_RUN": "first",
        "EDL_STORE": "edl://127.0.0.1:1",
        "EDL_SECRET_FILE": str(tmp_path / "secret"),
        "EDL_REQUEST_TIMEOUT_S": "0.1",
    }


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Names that resolve to these addresses; no other name does."""
    known: dict[str, str] = {}
    real = socket.getaddrinfo

    def resolve(host: str, *more: Any, **options: Any) -> Any:
        if host in known or host[:1].isdigit() or ":" in host:
            return real(known.get(host, host), *more, **options)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # put back what a refusal sets
    return known


def lead_from(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    leader = Known(worker=WorkerId("w0"), address=Address(host, 7007), token=1)
    monkeypatch.setattr(joining, "_leader", lambda identity: leader)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("node8", "127.0.1.1"),
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("node9", "0.0.0.0"),
    ],
)
def test_an_address_that_the_others_cannot_reach_is_refused_however_it_is_written(
    environment: dict[str, str],
    hosts: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    address: str,
) -> None:
    hosts[host] = address
    lead_from(monkeypatch, ELSEWHERE)
    with pytest.raises(UsageError, match=r"could not reach this process; set EDL_HOST=") as caught:
        identify({**environment, "EDL_HOST": host})
    assert f"EDL_HOST is {host}" in str(caught.value)
    assert address in str(caught.value)


@pytest.mark.parametrize("host", ["::", "::0", "::1"])
def test_an_ipv6_address_that_the_others_cannot_reach_is_refused(
    environment: dict[str, str], hosts: dict[str, str], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    lead_from(monkeypatch, ELSEWHERE)
    with pytest.raises(UsageError, match=r"could not reach this process; set EDL_HOST="):
        identify({**environment, "EDL_HOST": host})


@pytest.mark.parametrize("host", ["nodee8", ELSEWHERE, ""])
def test_a_host_that_is_not_this_machine_is_refused_before_anybody_is_asked(
    environment: dict[str, str], hosts: dict[str, str], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    def asked(identity: object) -> None:
        raise AssertionError("the store was asked for the leader")

    monkeypatch.setattr(joining, "_leader", asked)
    with pytest.raises(UsageError, match=f"EDL_HOST={host}: cannot listen on"):
        identify({**environment, "EDL_HOST": host})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EDL_SECRET_FILE", "/nowhere/secret"),
        ("EDL_SECRET_FILE", "truncated"),
        ("EDL_SECRET_FILE", "empty"),
        ("EDL_WORKER", "w 1"),
        ("EDL_SLOT", "node8"),
        ("EDL_HOST", ELSEWHERE),
        ("EDL_FOUNDERS", "many"),
        ("EDL_STORE", "nonsense"),
        ("EDL_LEASE_S", "soon"),
    ],
)
def test_a_variable_with_a_wrong_value_ends_the_script_with_one_line(
    environment: dict[str, str], tmp_path: Path, variable: str, value: str
) -> None:
    (tmp_path / "truncated").write_text("00f")
    (tmp_path / "empty").write_text("")
    given = str(tmp_path / value) if value in ("truncated", "empty") else value
    plain = {name: text for name, text in os.environ.items() if not name.startswith("EDL_")}
    done = subprocess.run(
        [sys.executable, "-c", "from edl.runtime.identity import identify; identify()"],
        env={**plain, **environment, variable: given},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("edl: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
