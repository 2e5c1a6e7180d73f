"""How a job looks: fields for programs, lines for people."""

from __future__ import annotations

import time
from dataclasses import replace

from rich.console import Console, RenderableType

from edl.cli.table import (
    adjustment_line,
    brief_event_line,
    event_line,
    lasting_fields,
    lasting_line,
    result_line,
    slots_text,
    status_fields,
    status_view,
    told_failures,
)
from edl.launch.jobs import Failure, Result
from edl.protocol.messages import AdjustmentStatus, Happened, Status, WorkerStatus
from edl.protocol.tale import AdjustmentRecord, Parts
from edl.runtime.standing import Noted
from edl.types import Address, WorkerId


def status() -> Status:
    worker = WorkerStatus(
        id=WorkerId("w0"),
        rank=0,
        pid=42,
        host="localhost",
        slot="localhost:0",
        address=Address("127.0.0.1", 7),
        leader=True,
        state="training",
        samples=48,
        compute_s=0.005,
    )
    adjustment = AdjustmentStatus(
        request_id="4f2", kind="scale_out", phase="switching", age_s=1.0, workers=(WorkerId("w1"),)
    )
    return Status(
        request_id="x",
        state="training",
        step=310,
        epoch=2,
        epochs=3,
        generation=1,
        batch=96,
        throughput=12345.6,
        step_s=0.01,
        workers=(worker,),
        adjustment=adjustment,
        report={"loss": 0.25},
        adjustments=0,
        trained_s=3.1,
        trained_samples=29760,
    )


def test_status_has_the_same_fields_for_every_program() -> None:
    fields = status_fields("mnist", status())
    assert " ".join(fields) == (
        "job state step epoch epochs generation batch throughput step_s switch_steps report "
        "workers adjustment adjustments stragglers"
    )
    assert {key: fields[key] for key in ("job", "state", "step", "epoch", "generation")} == {
        "job": "mnist",
        "state": "training",
        "step": 310,
        "epoch": 2,
        "generation": 1,
    }
    assert fields["workers"] == [
        {
            "id": "w0",
            "rank": 0,
            "pid": 42,
            "host": "localhost",
            "slot": "localhost:0",
            "address": "127.0.0.1:7",
            "leader": True,
            "state": "training",
            "samples": 48,
            "compute_s": 0.005,
            "slowness": 0.0,
            "straggler": False,
            "silent_s": 0.0,
            "process_runs": False,
        }
    ]
    assert fields["adjustment"] == {
        "request_id": "4f2",
        "kind": "scale_out",
        "phase": "switching",
        "detail": "",
        "age_s": 1.0,
        "workers": ["w1"],
    }


def render(view: RenderableType) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def test_a_status_says_whose_heartbeats_are_missing() -> None:
    plain = status()
    silent = replace(plain.workers[0], silent_s=4.2)
    shown = render(status_view("mnist", replace(plain, workers=(silent,))))
    assert "no heartbeat for 4 s" in shown
    assert "process runs" not in shown
    held = replace(silent, process_runs=True)
    shown = render(status_view("mnist", replace(plain, workers=(held,))))
    assert "no heartbeat for 4 s (process runs)" in shown


def test_a_status_says_who_is_a_straggler_how_slow_and_what_is_done_about_it() -> None:
    plain = status()
    slow = replace(plain.workers[0], slowness=1.333, straggler=True)
    shown = render(status_view("mnist", replace(plain, workers=(slow,), stragglers="warn")))
    assert "training, 1.33x the median" in shown
    assert "w0 is a straggler (--stragglers warn)" in shown
    assert "straggler" not in render(status_view("mnist", plain))


def test_a_status_for_the_eye_says_who_leads_and_what_is_in_flight() -> None:
    console = Console(width=120, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(status_view("mnist", status()))
    text = capture.get()
    for words in ("mnist  training", "step 310", "12,346 samples/s", "loss 0.25", "w0 *"):
        assert words in text
    assert "scale_out 4f2: switching (w1; 1.0 s)" in text


def test_one_event_is_one_line() -> None:
    event = Happened(
        seq=3,
        what="adjust.complete",
        request_id="4f2",
        generation=2,
        step=320,
        fields={"joined": "w1", "left": "", "total_s": 1.25},
    )
    expected = "adjust.complete gen=2 step=320 request=4f2 joined=w1 total_s=1.25"
    assert event_line(event) == expected
    hostile = replace(event, request_id="4\x1b[2Jf\n2")
    assert event_line(hostile) == expected.replace("4f2", r"4\x1b[2Jf\n2")


def test_at_the_terminal_an_adjustment_is_told_without_its_parts() -> None:
    parts = ("process_start_s", "context_s", "topology_s", "switch_wait_s", "transfer_s")
    event = Happened(
        seq=3,
        what="adjust.complete",
        request_id="4f2a91c0",
        generation=2,
        step=320,
        fields={
            "kind": "scale_out",
            "joined": "w2,w3",
            "workers": 4,
            "total_s": 7.61,
            **dict.fromkeys(parts, 1.25),
            "transfer_bytes": 200_000_000,
            "stop_s": 0.027,
        },
    )
    assert brief_event_line(event) == (
        "adjust.complete gen=2 step=320 request=4f2a91c0 kind=scale_out joined=w2,w3 workers=4 "
        "total_s=7.61 stop_s=0.027"
    )
    other = replace(event, what="worker.lost", fields={"worker": "w1", "context_s": 1.0})
    assert brief_event_line(other) == event_line(other)


def test_an_adjustment_is_told_with_its_stop_time() -> None:
    record = AdjustmentRecord(
        request_id="4f2",
        kind="scale_out",
        joined=(WorkerId("w1"),),
        left=(),
        generation=2,
        step=320,
        size=2,
        total_s=1.5,
        transfer_bytes=0,
        parts=Parts(stop_s=0.038),
    )
    assert adjustment_line(record) == (
        "scale_out: w1 joined; 2 workers from step 320 on (1.50 s in all, training stopped 38 ms)"
    )


def test_a_result_is_told_with_its_reason() -> None:
    result = Result(
        state="stopped",
        exit_status=143,
        why="edl stop",
        first_failure=None,
        steps=7,
        seconds=75.0,
        adjustments=(),
    )
    assert result_line("mnist", result) == "job mnist stopped: 7 steps in 1 min 15 s (edl stop)"


def failed(*steps: int | None) -> Result:
    failures = tuple(
        Failure(worker=f"w{n}", status=1, reason="exit status 1", traceback="", log="", step=step)
        for n, step in enumerate(steps)
    )
    return Result(
        state="failed",
        exit_status=1,
        why="no worker is left",
        first_failure=failures[0],
        steps=7,
        seconds=1.0,
        adjustments=(),
        failures=failures,
        restarts=2,
    )


def test_both_failures_on_one_batch_are_told_and_else_the_first() -> None:
    assert [each.worker for each in told_failures(failed(7, 7, 7))] == ["w0", "w1"]
    assert [each.worker for each in told_failures(failed(7, 8))] == ["w0"]
    assert [each.worker for each in told_failures(failed(None, None))] == ["w0"]
    assert result_line("j", failed(7)) == (
        "job j failed: 7 steps in 1.0 s, 2 restarts (no worker is left)"
    )


def test_a_status_tells_of_checkpoints_and_restarts() -> None:
    assert lasting_fields(0, None) == {"restarts": 0, "checkpoint": None}
    assert lasting_line(0, None) == ""
    noted = Noted(step=21, saved_at=time.time() - 90, error="disk full", failed_step=28, resumed=7)
    noted = replace(noted, failing_since=14)
    fields = lasting_fields(1, noted)["checkpoint"]
    assert isinstance(fields, dict)
    assert 89 < fields.pop("age_s") < 95
    assert fields == {
        "step": 21,
        "error": "disk full",
        "failed_step": 28,
        "resumed_from": 7,
        "passed_over": [],
    }
    noted = replace(noted, passed_over_why=(("ck/step-28", "no manifest.json"),))
    assert "resumed from step 7; passed over ck/step-28: no manifest.json" in lasting_line(1, noted)
    fields = lasting_fields(1, noted)["checkpoint"]
    assert isinstance(fields, dict)
    assert fields["passed_over"] == [{"path": "ck/step-28", "why": "no manifest.json"}]
    noted = replace(noted, passed_over_why=())
    line = lasting_line(1, noted)
    assert line.startswith("checkpoint of step 21, 1 min 3")
    assert line.endswith(
        "resumed from step 7; 1 restart; CHECKPOINTS FAIL since step 14: disk full"
    )


def shown(view: RenderableType) -> str:
    console = Console(width=200, highlight=False)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def test_people_count_epochs_from_one() -> None:
    first, last = replace(status(), epoch=0, epochs=200), replace(status(), epoch=199, epochs=200)
    assert "epoch 1/200 " in shown(status_view("mnist", first))
    assert "epoch 200/200 " in shown(status_view("mnist", last))
    assert "epoch 200/200 " in shown(status_view("mnist", replace(last, epoch=200)))
    assert "epoch 5 " in shown(status_view("mnist", replace(first, epoch=4, epochs=0)))
    assert status_fields("mnist", last)["epoch"] == 199


def test_a_stragglers_figure_says_that_it_is_per_sample() -> None:
    worker = replace(status().workers[0], straggler=True, slowness=10.06)
    told = shown(status_view("mnist", replace(status(), workers=(worker,))))
    assert "training, 10.06x the median per sample" in told


def test_slots_are_told_in_few_characters() -> None:
    assert slots_text(["localhost:3", "localhost:0", "localhost:1", "b:7"]) == "b:7 localhost:0-1,3"
    assert slots_text([]) == "-"
