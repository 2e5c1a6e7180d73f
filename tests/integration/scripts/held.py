"""As journal.py, but while the file `hold` is beside the logs, groups wait for their peers.

They listen already: a stranger has time to connect before the honest ranks do.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import journal  # type: ignore[import-not-found]

from edl.failpoints import set_hook


def wait() -> None:
    folder = Path(sys.argv[sys.argv.index("--log") + 1])
    if (folder / "hold").exists():
        (folder / f"listening-{os.environ['EDL_WORKER']}").touch()
        while (folder / "hold").exists():
            time.sleep(0.01)


set_hook("group.listening", wait)
journal.main()
