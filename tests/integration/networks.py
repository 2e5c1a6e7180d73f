"""A second network on this machine, for processes that are elsewhere; its link can be cut."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from edl.client import Job
from tests.contract.servers import Etcd

__all__ = [
    "Namespace",
    "OpenEtcd",
    "address_taken",
    "cut_pair",
    "outside",
    "second_network",
    "two_networks",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Another network, whose only way out is to ours."""

    name: str
    here: str
    there: str
    link: str  # the end of the link that lies there

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Nothing comes through any more, in neither direction, and nobody is told."""
        self._link("down")

    def restore(self) -> None:
        self._link("up")

    def _link(self, state: str) -> None:
        command = ["ip", "-n", self.name, "link", "set", self.link, state]
        subprocess.run(command, check=True, capture_output=True)


@contextmanager
def second_network() -> Iterator[Namespace]:
    """Skips the test where none can be made."""
    number = os.getpid() % 200 + 20
    link, far = f"edl{os.getpid()}a", f"edl{os.getpid()}b"
    made = Namespace(
        name=f"edl-{os.getpid()}",
        here=f"10.213.{number}.1",
        there=f"10.213.{number}.2",
        link=far,
    )
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("a second network needs root and the ip command (iproute2)")
    try:
        for words in (
            f"netns add {made.name}",
            f"link add {link} type veth peer name {far} netns {made.name}",
            f"addr add {made.here}/24 dev {link}",
            f"link set {link} up",
            f"-n {made.name} addr add {made.there}/24 dev {far}",
            f"-n {made.name} link set {far} up",
            f"-n {made.name} link set lo up",
        ):
            done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"this machine allows no second network: {done.stderr.strip()}")
        yield made
    finally:
        subprocess.run(["ip", "netns", "del", made.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)


def _run(*commands: str) -> None:
    for words in commands:
        done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this machine allows no second network: {done.stderr.strip()}")


@contextmanager
def two_networks() -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces on one bridge with this machine; skips the test where none can be made."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the ip command (iproute2)")
    net, pid = f"10.214.{os.getpid() % 200 + 20}", os.getpid()
    bridge, here = f"edl{pid}br", f"{net}.1"
    made = [
        Namespace(name=f"edl-{pid}-{n}", here=here, there=f"{net}.{n + 2}", link=f"edl{pid}f{n}")
        for n in range(2)
    ]
    try:
        _run(f"link add {bridge} type bridge", f"addr add {here}/24 dev {bridge}")
        _run(f"link set {bridge} up")
        for n, space in enumerate(made):
            near = f"edl{pid}n{n}"
            _run(
                f"netns add {space.name}",
                f"link add {near} type veth peer name {space.link} netns {space.name}",
                f"link set {near} master {bridge} up",
                f"-n {space.name} addr add {space.there}/24 dev {space.link}",
                f"-n {space.name} link set {space.link} up",
                f"-n {space.name} link set lo up",
            )
        yield made[0], made[1]
    finally:
        for space in made:
            subprocess.run(["ip", "netns", "del", space.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def cut_pair(one: Namespace, other: Namespace) -> None:
    """These two lose every packet to each other, silently; both still reach this machine."""
    for near, far in ((one, other), (other, one)):
        # No machine has this hardware address.
        words = f"neigh replace {far.there} lladdr 02:00:00:00:00:fe dev {near.link} nud permanent"
        command = ["ip", "-n", near.name, *words.split()]
        subprocess.run(command, check=True, capture_output=True)


@contextmanager
def address_taken(network: Namespace) -> Iterator[None]:
    """The network is cut off, and another machine with its address refuses every connection."""
    place = f"{network.there}/32 dev lo"
    network.cut()
    _run(f"addr add {place}")
    try:
        yield
    finally:
        subprocess.run(["ip", *f"addr del {place}".split()], check=True)
        network.restore()


class OpenEtcd(Etcd):
    """One that other networks reach too."""

    host = "127.0.0.1"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def ready(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


def outside(job: Job, store: str, host: str, **more: str) -> dict[str, str]:
    """All that a process needs, as docs/joining.md lists it."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("EDL_")},
        "EDL_JOB": job.name,
        "EDL_STORE": store,
        "EDL_SECRET_FILE": str(job.folder / "secret"),
        "EDL_HOST": host,
        "EDL_JOIN": "1",
        **more,
    }
