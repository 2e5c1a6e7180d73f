"""What a worker finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.config import Settings
from edl.launch.environment import KEEP_MEMORY, worker_environment
from edl.launch.jobs import JobFolder
from edl.protocol.messages import Joiner
from edl.types import Gpu, WorkerId


def environment(
    base: dict[str, str], *, device: str | None = None, gpus: str | None = None
) -> dict[str, str]:
    return worker_environment(
        base,
        folder=JobFolder(Path("jobs", "mnist-7")),
        run="1",
        attempt=0,
        settings=Settings(),
        joiner=Joiner(worker=WorkerId("w3"), slot=Gpu("localhost", 3)),
        request_id="r",
        founders=2,
        together=2,
        device=device,
        gpus=gpus,
    )


def test_a_worker_on_the_cpu_keeps_the_memory_it_freed() -> None:
    found = environment({"PATH": "/bin"})
    assert KEEP_MEMORY.items() <= found.items()
    assert found["PATH"] == "/bin"


def test_a_worker_on_a_gpu_does_not() -> None:
    found = environment({}, device="1")
    assert not KEEP_MEMORY.keys() & found.keys()
    assert found["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    "name", ["MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"]
)
def test_who_has_tuned_the_allocator_is_left_alone(name: str) -> None:
    found = environment({name: "7"})
    assert found[name] == "7"
    assert not KEEP_MEMORY.keys() & (found.keys() - {name})


def test_who_sets_threads_is_left_alone() -> None:
    assert environment({"OMP_NUM_THREADS": "5"})["OMP_NUM_THREADS"] == "5"


def test_gpu_index_counts_as_nvidia_smi_does() -> None:
    assert environment({}, device="1")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    numbered = {"CUDA_VISIBLE_DEVICES": "1"}
    assert environment(numbered, device="1")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    fastest = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert environment(fastest, device="1")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    own = {**fastest, "CUDA_VISIBLE_DEVICES": "1,2"}
    assert environment(own, device="1", gpus="1")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_user_who_numbers_the_gpus_chooses_their_order() -> None:
    own = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1,2"}
    assert environment(own, device="1")["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_gpu_that_has_a_name_needs_no_order() -> None:
    assert "CUDA_DEVICE_ORDER" not in environment({}, device="GPU-8f1c")
    assert "CUDA_DEVICE_ORDER" not in environment({})
