"""From a trace and a policy's name to an outcome: speeds, rounds, what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.simulator.jobs import Trace, TraceJob
from edl.simulator.run import POLICIES, make_policy, simulate
from edl.simulator.setting import MECHANISMS, Setting
from edl.simulator.speeds import BUILT_IN, Speeds

IDEAL = Setting(nodes=2, gpus_per_node=4, mechanism="ideal", prices=MECHANISMS["ideal"])


def job(number: int, submit_s: float, gpus: int = 2, **more: object) -> TraceJob:
    made = TraceJob(id=f"j{number}", submit_s=submit_s, gpus=gpus, duration_s=100.0)
    return replace(made, **more)  # type: ignore[arg-type]


def trace(*jobs: TraceJob) -> Trace:
    return Trace(name="by hand", jobs=jobs)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("placement", ["counts", "consolidated"])
def test_every_policy_finishes_every_job(policy: str, placement: str) -> None:
    jobs = [job(number, 10.0 * number, gpus=1 + number % 5) for number in range(12)]
    setting = replace(IDEAL, placement=placement)
    outcome = simulate(trace(*jobs), policy, setting, check=True)
    assert [each.id for each in outcome.jobs] == [each.id for each in jobs]
    assert outcome.policy == policy
    work = sum(each.size_gpu_s for each in outcome.jobs)
    assert work == sum(each.gpus * 100.0 for each in jobs)


def test_a_job_alone_takes_as_long_as_its_trace_says() -> None:
    outcome = simulate(trace(job(0, 0.0, elastic=False)), "tiresias", IDEAL)
    assert outcome.jobs[0].end_s == pytest.approx(100.0)
    priced = replace(IDEAL, mechanism="edl", prices=MECHANISMS["edl"])
    outcome = simulate(trace(job(0, 0.0, elastic=False)), "tiresias", priced)
    assert outcome.jobs[0].end_s == pytest.approx(120.0), "20 s to start"


def test_in_rounds_a_job_waits_for_the_next_one() -> None:
    setting = replace(IDEAL, round_s=60.0)
    outcome = simulate(trace(job(0, 0.0), job(1, 70.0)), "tiresias", setting)
    assert [each.start_s for each in outcome.jobs] == [0.0, 120.0]


def test_jobs_larger_than_the_cluster_are_left_out_and_counted() -> None:
    outcome = simulate(trace(job(0, 0.0), job(1, 1.0, gpus=9)), "fifo", IDEAL)
    assert (len(outcome.jobs), outcome.rejected) == (1, 1)
    with pytest.raises(UsageError, match="no job of by hand fits into 8 GPUs"):
        simulate(trace(job(0, 0.0, gpus=9)), "fifo", IDEAL)


def test_an_unknown_policy_is_told_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no policy 'wf'; choose from fifo, srtf, tiresias"):
        make_policy("wf")


def test_models_are_drawn_by_the_seed_and_unknown_ones_are_always_the_same() -> None:
    jobs = [job(number, 0.0) for number in range(40)]

    def labels(seed: int) -> list[str]:
        speeds = Speeds(models=None, seed=seed, gpus_per_node=4, capacity=8)
        return [speeds.curve(each).label for each in jobs]

    assert labels(1) == labels(1) != labels(2)
    assert set(labels(1)) == set(BUILT_IN)
    named = [job(number, 0.0, model="vgg19") for number in range(3)]
    outcome = simulate(trace(*named), "fifo", IDEAL)
    assert len({each.model for each in outcome.jobs}) == 1
    like = outcome.jobs[0].model
    assert outcome.notes == (f"model 'vgg19' of 3 jobs is not known: they go like {like!r}",)


def test_many_unknown_models_are_summed_up() -> None:
    speeds = Speeds(models=None, seed=0, gpus_per_node=4, capacity=8)
    for number in range(11):
        speeds.curve(job(number, 0.0, model=f"m{number:02}"))
    assert len(speeds.notes()) == 9
    assert speeds.notes()[-1] == "nor are 3 other models of 3 jobs"


def test_a_profile_of_a_real_job_is_everybodys_speed(tmp_path: Path) -> None:
    table = tmp_path / "profile.csv"
    table.write_text("workers,throughput\n4,300\n2,200\n1,120\n")
    speeds = Speeds(models=str(table), seed=0, gpus_per_node=4, capacity=8)
    assert speeds.curve(job(0, 0.0)).rate == (0.0, 120.0, 200.0, 250.0, 300.0)


def test_where_a_profile_ends_is_said_once(tmp_path: Path) -> None:
    table = tmp_path / "profile.csv"
    table.write_text("workers,throughput\n4,300\n2,200\n1,120\n")
    setting = replace(IDEAL, models=str(table))
    outcome = simulate(trace(job(0, 0.0), job(1, 0.0, gpus=6)), "fifo", setting)
    (note,) = outcome.notes
    assert note.startswith("measured speeds end at 4 GPUs (jobs that ask for more: 1); on more a")
    # On 4 GPUs, or where nobody may have more than were measured, there is nothing to say.
    small = replace(setting, nodes=1)
    assert simulate(trace(job(0, 0.0)), "fifo", small).notes == ()
    bound = [job(0, 0.0, max_gpus=4), job(1, 0.0, gpus=4, elastic=False)]
    assert simulate(trace(*bound), "fifo", setting).notes == ()


def test_a_table_that_is_none_of_speeds_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "other.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match=r"other\.csv has the columns a, b; expected a table"):
        Speeds(models=str(table), seed=0, gpus_per_node=4, capacity=8)
