"""What the documentation names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "protocol|policy|plain|torch|plugin|data|collective|runtime|store|wire|launch|cli|simulator|"
    "scheduler"
)
TESTS = "unit|integration|e2e|seeded|contract|tidy|scenarios|paper|browser"


def named_files(text: str) -> set[str]:
    """Modules and tests as the paper map writes them, as paths from the repository's root."""
    modules = re.findall(rf"`((?:{ROOMS})/[\w/]*(?:\.py)?)`", text)
    alone = re.findall(r"`((?:client|types|config|errors)\.py)`", text)
    tests = re.findall(rf"`((?:{TESTS})/[\w/]+\.py)`", text)
    return {f"src/edl/{name}" for name in (*modules, *alone)} | {f"tests/{n}" for n in tests}


def linked_files(page: Path) -> list[Path]:
    """Targets of a page's relative links."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    return [page.parent / link for link in links]


def test_a_named_file_is_found() -> None:
    text = "`protocol/leader.py`, `client.py`, `unit/test_x.py` and `torch/`, but not `edl run`"
    assert named_files(text) == {
        "src/edl/protocol/leader.py",
        "src/edl/client.py",
        "tests/unit/test_x.py",
        "src/edl/torch/",
    }


def test_the_paper_map_names_only_what_exists() -> None:
    named = named_files((ROOT / "docs" / "paper-map.md").read_text())
    assert len(named) > 40
    absent = sorted(name for name in named if not (ROOT / name).exists())
    assert not absent


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    broken = [f"{page.name}: {t}" for page in pages for t in linked_files(page) if not t.exists()]
    assert not broken
