"""A real browser for pages that EDL writes. Where there is none, these tests are skipped."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Browser", "Seen"]

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=3000",
]
PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Seen:
    """A page after its script ran: its document, and what it wrote to the console."""

    dom: str
    console: list[str]


class Browser:
    """Opens a file in a browser that has never seen anything."""

    def open(self, page: Path, *, behind: str = "", width: int = 1280, dark: bool = False) -> Seen:
        done = self._run(page, behind, width, 900, ["--dump-dom"], dark=dark)
        console = [line for line in done.stderr.splitlines() if re.search(r":CONSOLE\b", line)]
        return Seen(done.stdout, console)

    def picture(self, page: Path, to: Path, *, behind: str, width: int, height: int) -> None:
        self._run(page, behind, width, height, [f"--screenshot={to}"])

    def _run(
        self,
        page: Path,
        behind: str,
        width: int,
        height: int,
        wish: list[str],
        *,
        dark: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            return subprocess.run(
                [
                    str(CHROMIUM),
                    *FLAGS,
                    *scheme,
                    f"--user-data-dir={profile}",
                    f"--window-size={width},{height}",
                    *wish,
                    f"{page.as_uri()}{behind}",
                ],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=True,
            )


@pytest.fixture(scope="session")
def browser() -> Browser:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    return Browser()
