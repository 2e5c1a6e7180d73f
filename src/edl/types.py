"""Values that every layer shares. Owns no behaviour beyond parsing and printing.

A worker is one process with one slot. A slot is a GPU, or a CPU slot where there are no GPUs;
both are written `host:index`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NewType

from edl.errors import UsageError

__all__ = ["NAME", "Address", "Gpu", "JobHandle", "Member", "WorkerId", "workers_said"]

WorkerId = NewType("WorkerId", str)
JobHandle = NewType("JobHandle", str)


def workers_said(count: int) -> str:
    """As a person would say it."""
    return f"{count} worker" if count == 1 else f"{count} workers"


# Jobs, workers and hosts: safe in a path, a list with commas, a log line and a terminal.
NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a listener can be reached: an explicit IP address, never a name to be resolved."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Address:
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"address {text!r} is not HOST:PORT; give for example 127.0.0.1:7007")
        return Address(host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    """One slot of a machine: the unit that a scheduler hands out."""

    host: str
    index: int

    def __str__(self) -> str:
        return f"{self.host}:{self.index}"

    @staticmethod
    def parse(text: str) -> Gpu:
        host, _, index = text.rpartition(":")
        if not NAME.fullmatch(host) or not (index.isascii() and index.isdigit()):
            raise UsageError(
                f"slot {text!r} is not HOST:INDEX, where HOST has up to 128 letters, digits, '.', "
                "'_' and '-'; give for example localhost:0"
            )
        return Gpu(host, int(index))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One worker as the others know it. The order of members in a generation is the rank."""

    worker: WorkerId
    address: Address
    host: str
    slot: Gpu
    pid: int
