"""Is anything ever lost, whatever befalls the workers of a real job?

    python bench/chaos.py [--runs 100] [--seed 0] [--blows 8]

Each run is a job of four workers under a random mix of SIGKILL, SIGSTOP, SIGTERM (the leader too),
scale-outs and scale-ins, judged from its script's own log: see tests/integration/chaos.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.integration.chaos import chaos  # noqa: E402
from tests.integration.templates import running_template  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--blows", type=int, default=8)
    parser.add_argument("--keep", help="keep the folders of failed runs here")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    failed: list[int] = []
    with tempfile.TemporaryDirectory() as place, running_template(Path(place)) as template:
        os.environ["EDL_TEMPLATE"] = template
        for seed in range(options.seed, options.seed + options.runs):
            scratch = tempfile.mkdtemp(prefix=f"edl-chaos-{seed}-", dir=options.keep)
            os.environ["EDL_HOME"] = str(Path(scratch, "home"))
            try:
                report = chaos(seed, Path(scratch), blows=options.blows)
                total += report.happened
                print(report, flush=True)
                shutil.rmtree(scratch)
            except Exception as error:
                failed.append(seed)
                print(f"seed {seed} FAILED in {scratch}: {error!r}"[:2000], flush=True)
    print(f"{options.runs - len(failed)} of {options.runs} runs lost nothing; {dict(total)}")
    if failed:
        print(f"failed seeds: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
