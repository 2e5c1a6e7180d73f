"""One server of each outside kind for all tests of a run; each test has a job of its own in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.servers import Etcd, ZooKeeper
from tests.integration.conftest import log, start, template

# Plug-ins are judged by real jobs, which are started as in tests/integration.
__all__ = ["etcd_server", "log", "start", "template", "zookeeper_server"]


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
