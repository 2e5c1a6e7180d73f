"""The report of `edl simulate` in a browser: what is there when its script ran, and was touched."""

from __future__ import annotations

import json
import re
import struct
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from edl.simulator.report import write_report
from tests.browser.conftest import Browser
from tests.unit.outcomes import compared

NASTY = "<script>document.title = 'owned'</script>"
# What a test asks of the page is written where the document's text shows it.
ASKED = """
<script>
const touch = (plot, x, y = 0.5) => {
  const target = typeof plot === "string" ? document.querySelector(plot) : plot;
  const box = target.closest(".plot").getBoundingClientRect();
  target.dispatchEvent(new PointerEvent("pointermove", { bubbles: true,
    clientX: box.left + x * box.width, clientY: box.top + y * box.height }));
  return document.getElementById("tip").innerText.split(/\\n+/).filter(Boolean);
};
const shown = () => [...document.querySelectorAll("polyline")]
  .filter((line) => getComputedStyle(line).display !== "none").length;
const chip = (policy) => document.querySelector(`#policies [data-policy="${policy}"]`);
const answer = (() => { ASK })();
const told = document.createElement("pre");
told.id = "answer";
told.textContent = JSON.stringify(answer);
parent.document.body.append(told);
</script></body>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "out"
    return write_report(folder, compared(name=NASTY), trace_notes=[NASTY])


def ask(browser: Browser, page: Path, script: str, *, narrow: bool = False, **options: Any) -> Any:
    """Run a script in a copy of the page, which without its rules would not let it."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    text = text.replace("</body>", ASKED.replace("ASK", script))
    if narrow:
        # A window has a least width, a frame has none.
        text = f'<iframe width="400" height="900" srcdoc="{escape(text)}"></iframe>'
    copy = page.with_name("asked.html")
    copy.write_text(text)
    seen = browser.open(copy, **options)
    assert seen.console == []
    (answer,) = re.findall(r'<pre id="answer">(.*?)</pre>', seen.dom, re.DOTALL)
    return json.loads(unescape(answer))


def test_the_page_is_quiet_and_whole(browser: Browser, page: Path) -> None:
    seen = browser.open(page)
    assert seen.console == []
    assert seen.dom.count("<polyline") == 8
    assert seen.dom.count('aria-pressed="true"') == 2
    assert re.search(r'<button type="button" id="theme"[^>]*>Dark</button>', seen.dom)
    assert 'id="theme" hidden' not in seen.dom


def test_a_page_that_is_not_quiet_is_noticed(browser: Browser, tmp_path: Path) -> None:
    loud = tmp_path / "loud.html"
    loud.write_text("<script>throw new Error('loud')</script>")
    (line,) = browser.open(loud).console
    assert "loud" in line


def test_a_name_runs_nothing_also_without_the_pages_rules(browser: Browser, page: Path) -> None:
    assert "<title>Simulation of small</title>" in browser.open(page).dom
    bar = "[...document.querySelectorAll('[data-j]')].find((b) => b.dataset.j.startsWith('<'))"
    title, head, inner = ask(
        browser,
        page,
        f"const bar = {bar}; const [head] = touch(bar, 0.6);"
        "return [document.title, head, document.querySelectorAll('#tip script').length];",
    )
    assert (title, head, inner) == ("Simulation of small", f"job {NASTY}", 0)


def test_the_rules_let_no_other_script_run(browser: Browser, page: Path) -> None:
    planted = page.with_name("planted.html")
    script = "<script>document.title = 'owned'</script></body>"
    planted.write_text(page.read_text().replace("</body>", script))
    seen = browser.open(planted)
    assert "<title>Simulation of small</title>" in seen.dom
    assert len(seen.console) == 1
    assert "Content Security Policy" in seen.console[0]


def test_a_policy_is_hidden_and_shown_again(browser: Browser, page: Path) -> None:
    answer = ask(
        browser,
        page,
        "const found = [shown()];"
        "for (const times of [1, 2]) { chip('tiresias').click();"
        " found.push(shown(), chip('tiresias').getAttribute('aria-pressed'), location.hash); }"
        "return found;",
    )
    assert answer == [8, 4, "false", "#hide=tiresias", 8, "true", ""]


def test_the_address_says_what_is_hidden(browser: Browser, page: Path) -> None:
    seen = browser.open(page, behind="#hide=elastic-tiresias&theme=dark")
    assert seen.dom.count('aria-pressed="false" data-policy="elastic-tiresias"') == 1
    # Four curves, three bars and a Gantt chart.
    assert len(re.findall(r'class="series [^"]*off"', seen.dom)) == 8
    assert 'data-theme="dark"' in seen.dom


BACKGROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 27)"


@pytest.mark.parametrize(("dark", "before", "after"), [(False, LIGHT, DARK), (True, DARK, LIGHT)])
def test_colours_follow_the_system_until_the_button_is_pressed(
    dark: bool, before: str, after: str, browser: Browser, page: Path
) -> None:
    answer = ask(
        browser,
        page,
        f"const theme = document.getElementById('theme'); const first = {BACKGROUND};"
        f"theme.click(); return [first, {BACKGROUND}, theme.textContent];",
        dark=dark,
    )
    assert answer == [before, after, "Dark" if dark else "Light"]


def test_a_pointer_reads_every_kind_of_chart(browser: Browser, page: Path) -> None:
    lines, hidden, bars, bar, idle = ask(
        browser,
        page,
        "const lines = touch('#used .plot', 0.25);"
        "chip('tiresias').click();"
        "const hidden = touch('#used .plot', 0.9); chip('tiresias').click();"
        "const bars = touch('#sizes .plot', 0.1);"
        "const bar = touch(document.querySelectorAll('[data-g=\"4/2\"]')[0], 0.75);"
        "return [lines, hidden, bars, bar, touch('#gantt .plot', 0.99, 0.01)];",
    )
    assert lines == ["50.0 s", "tiresias", "100.0 %", "elastic-tiresias", "100.0 %"]
    assert hidden == ["3 min", "elastic-tiresias", "over"]
    assert bars == ["up to 500 GPU s", "tiresias", "1 min 40 s", "elastic-tiresias", "2 min"]
    assert bar == [
        f"job {NASTY}",
        *("GPUs held", "4", "GPUs asked for", "2"),
        *("from", "+ 2 min 20 s", "until", "+ 2 min 40 s"),
    ]
    assert idle == ["+ 3 min 18 s", "idle"]


def test_one_pointer_is_seen_on_all_time_axes(browser: Browser, page: Path) -> None:
    answer = ask(
        browser,
        page,
        "touch('#worth .plot', 0.5); return ['cdf', 'used', 'worth', 'waiting', 'gantt']"
        ".map((name) => !document.querySelector(`#${name} .cursor`).hidden);",
    )
    assert answer == [False, True, True, True, False]


@pytest.mark.parametrize(("narrow", "width"), [(True, 400), (False, 1280)])
def test_nothing_is_wider_than_the_page_and_no_names_of_ticks_touch(
    narrow: bool, width: int, browser: Browser, page: Path
) -> None:
    wide, touching = ask(
        browser,
        page,
        "const boxes = (plot, kind) => [...plot.querySelectorAll(kind)]"
        "  .map((tick) => [tick.textContent, tick.getBoundingClientRect()])"
        "  .filter(([text, box]) => box.width);"
        "const meet = ([, a], [, b]) => a.left < b.right && b.left < a.right"
        "  && a.top < b.bottom && b.top < a.bottom;"
        "const touching = [...document.querySelectorAll('.plot')].flatMap((plot) => {"
        "  const found = boxes(plot, '.tx, .ty, .xtitle');"
        "  return found.filter((a, i) => found.slice(i + 1).some((b) => meet(a, b)))"
        "    .map(([text]) => text); });"
        "return [document.documentElement.scrollWidth, touching];",
        narrow=narrow,
    )
    assert wide == width
    assert touching == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_can_be_drawn(
    theme: str, width: int, browser: Browser, page: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "page.png"
    browser.picture(page, picture, behind=f"#theme={theme}", width=width, height=1000)
    assert struct.unpack(">II", picture.read_bytes()[16:24]) == (width, 1000)
