"""Is every sample used exactly once, whatever kind of dataset it comes from?

    python bench/every_reader.py [--adjustments 200] [--kills 20] [--kinds map,tar] [--seed 0]
    python bench/every_reader.py --kinds read,own-thread

For each kind of dataset, without and with loader processes, and for each way of using
elastic_shard_generator (see tests/integration/scripts/pipelines.py): a real job is scaled out and
in at random and its workers are killed, the leader too. It is judged twice, from its script's own
log and by the job's audit, and both must agree; see tests/integration/test_readers.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edl.client import run  # noqa: E402
from tests.integration.judge import read_journal  # noqa: E402
from tests.integration.templates import running_template  # noqa: E402
from tests.integration.test_failures import wait_step  # noqa: E402
from tests.integration.test_pipelines import WAYS  # noqa: E402
from tests.integration.test_readers import BATCH, KINDS, SAMPLES, shake  # noqa: E402

ALL = (*KINDS, *WAYS)


def trial(kind: str, num_workers: int, folder: Path, options: argparse.Namespace) -> str:
    """One job, and what is to be said of it; AssertionError if a sample was lost or used twice."""
    log, until = folder / "log", folder / "until"
    log.mkdir()
    os.environ["EDL_HOME"] = str(folder / "home")
    began = time.monotonic()
    name, what = ("pipelines.py", "--way") if kind in WAYS else ("reading.py", "--kind")
    job = run(
        str(ROOT / "tests" / "integration" / "scripts" / name),
        *("--log", str(log), "--until", str(until), what, kind),
        *(("--num-workers", str(num_workers)) if kind in KINDS else ()),
        workers=3,
    )
    try:
        wait_step(job, 5)
        seed = options.seed + ALL.index(kind) * 2 + bool(num_workers)
        shake(job, seed, adjustments=options.adjustments, kills=options.kills)
        until.touch()
        result = job.wait(120)
    except BaseException:
        job.stop()
        raise
    assert result.state == "finished", result.why
    journal = read_journal(log)
    epochs = len(journal.used())
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(epochs)))
    if not kind.startswith("own"):
        journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    audit = job.audit()
    assert audit.exact, audit.fault
    assert {epoch.state for epoch in audit.epochs} == {"complete"}, audit.epochs
    assert audit.steps == max(journal.counted()) + 1, "the audit has other steps than the log"
    used = sum(epoch.used for epoch in audit.epochs)
    return (
        f"{options.adjustments} adjustments and {options.kills} kills, {audit.steps} steps, "
        f"{epochs} epochs, {used} samples used once each, {time.monotonic() - began:.0f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--adjustments", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(ALL))
    parser.add_argument("--num-workers", default="0,2", help="loader processes, one by one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", help="keep the folders of failed jobs here")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := set(kinds) - set(ALL):
        parser.error(f"no kind {min(unknown)!r}; there are {', '.join(ALL)}")
    failed = 0
    with tempfile.TemporaryDirectory() as place, running_template(Path(place)) as template:
        os.environ["EDL_TEMPLATE"] = template
        for kind in kinds:
            for num_workers in map(int, options.num_workers.split(",") if kind in KINDS else "0"):
                folder = tempfile.mkdtemp(prefix=f"edl-{kind}-{num_workers}-", dir=options.keep)
                name = f"{kind}, {num_workers} loader processes"
                try:
                    print(f"{name}: {trial(kind, num_workers, Path(folder), options)}", flush=True)
                    shutil.rmtree(folder, ignore_errors=True)
                except Exception as error:
                    failed += 1
                    print(f"{name}: WRONG in {folder}: {error!r}"[:2000], flush=True)
    print(f"{failed} jobs were wrong" if failed else "each sample was used exactly once")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
