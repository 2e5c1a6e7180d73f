"""The page of a simulation: what it says, that it is whole, and that names stay names."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.simulator.chart_gantt import MOST_BARS, Bar, stacked, window_of
from edl.simulator.chart_palette import HELD, STYLES, held_class, styles_of
from edl.simulator.chart_scale import (
    Scale,
    count_scale,
    gpu_scale,
    log_time_scale,
    share_scale,
    time_scale,
)
from edl.simulator.outcome import Outcome, Span, Timeline
from edl.simulator.report import check_report, render, write_report
from tests.unit.outcomes import an_outcome, compared, done


class Reader(HTMLParser):
    """Elements with their attributes, and every text; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in {"meta", "link"}:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open[-1] not in {"script", "style"}:
            self.texts.append(data.strip())

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and wanted.items() <= attributes.items()
        ]


# -- the page --------------------------------------------------------------------------------


def test_the_page_shows_every_policy_in_every_chart() -> None:
    page = Reader(render(compared()))
    for policy in ("tiresias", "elastic-tiresias"):
        assert len(page.all("polyline", **{"data-policy": policy})) == 4
        assert len(page.all("button", **{"data-policy": policy})) == 1
        assert len(page.all("div", **{"data-policy": policy, "class": "series group"})) == 1
        # Sizes of three classes occur, and a class without jobs has no bar.
        assert len(page.all("rect", **{"data-policy": policy})) == 3
    bars = [each for each in page.all("rect") if "data-j" in each]
    assert {each["class"] for each in bars} == {held.name for held in HELD}


def test_the_page_says_what_the_numbers_are() -> None:
    page = Reader(render(compared(), trace_notes=["12 jobs left out"], how=[("Command", "edl x")]))
    line = page.texts.index("tiresias")
    assert page.texts[line : line + 3] == ["tiresias", "133", "100"]
    assert "-17.5 %" in page.texts
    assert "Mean JCT: elastic-tiresias 1 min 50 s, 17.5 % less than tiresias (2 min 13 s)." in (
        page.texts
    )
    for text in ("12 jobs left out", "edl x", "1 machines x 4 = 4 GPUs", "small: 3 jobs"):
        assert text in page.texts


def test_the_best_of_a_column_is_marked() -> None:
    text = render(compared())
    assert '<td class="best">110</td>' in text
    assert '<td class="best">133</td>' not in text


def test_one_policy_is_compared_with_nobody() -> None:
    text = render(compared()[:1])
    assert "baseline</th>" not in text
    assert 'class="base"' not in text
    assert 'class="best"' not in text
    assert 'class="lead"' not in text


def test_every_chart_has_a_name_and_a_table() -> None:
    page = Reader(render(compared()))
    assert len(page.all("figure")) == 6
    assert len(page.all("details")) == 6
    plots = [each for each in page.all("svg") if each.get("role") == "img"]
    assert len(plots) == 7
    assert all(each["aria-label"] for each in plots)


def test_the_page_asks_nobody_for_anything() -> None:
    text = render(compared())
    assert re.findall(r"https?://|//[a-z]|@import|url\(", text.split("<script>")[0]) == []
    page = Reader(text)
    assert page.all("link") == [{"rel": "icon", "href": "data:,"}]
    assert [each for _, each in page.elements if "src" in each] == []


NASTY = "<script>alert('x')</script>\"&"


def test_a_job_called_script_is_text() -> None:
    outcomes = [replace(each, trace=NASTY) for each in compared(name=NASTY)]
    page = Reader(render(outcomes, trace_notes=[NASTY], how=[(NASTY, NASTY), ("Command", NASTY)]))
    assert len(page.all("script")) == 1
    assert len([each for each in page.all("rect") if each.get("data-j") == NASTY]) >= 4
    assert page.texts.count(NASTY) >= 4
    assert f"Simulation of {NASTY}" in page.texts


def test_a_policy_called_script_is_text() -> None:
    page = Reader(render([compared()[0], replace(compared()[1], policy=NASTY)]))
    assert len(page.all("script")) == 1
    assert len(page.all("button", **{"data-policy": NASTY})) == 1
    assert len(page.all("polyline", **{"data-policy": NASTY})) == 4


def test_only_our_own_script_may_run() -> None:
    (rules,) = re.findall(r'Security-Policy" content="([^"]+)"', render(compared()))
    assert "default-src 'none'" in rules
    (scripts,) = re.findall(r"script-src ([^;]+);", rules)
    assert re.fullmatch(r"'sha256-[\w+/]+='", scripts)


def test_an_empty_window_is_said() -> None:
    (outcome,) = compared()[:1]
    assert "No job held GPUs in the window." in render([replace(outcome, spans=())])


def test_no_outcome_is_no_page() -> None:
    with pytest.raises(UsageError, match="one policy at least"):
        render([])


def many(policy: str, *, jobs: int, spans: int) -> Outcome:
    """The shape of a large trace."""
    finished = [
        done(f"job-{i}", submit_s=float(i), end_s=i + 1.5 * i % 9973 + 1, size_gpu_s=float(i))
        for i in range(jobs)
    ]
    bars = [Span(f"job-{i}", float(i), i + 100.0, 1 + i % 3, 2) for i in range(spans)]
    curve = tuple(float(i % 97) for i in range(1600))
    outcome = an_outcome(*finished, policy=policy, spans=bars, window_s=(0.0, 1e9))
    return replace(
        outcome, nodes=288, gpus_per_node=8, timeline=Timeline(10.0, curve, curve, curve, curve)
    )


def test_a_large_trace_makes_a_page_of_moderate_size() -> None:
    policies = list(styles_of(["fifo", "tiresias", "elastic-tiresias", "wf-las", "wf-srpt"]))
    outcomes = [many(policy, jobs=800, spans=2500) for policy in policies]
    text = render(outcomes)
    assert len(text) < 2_000_000
    # And the one that was there at the beginning.
    assert text.count("data-j=") == 5 * (MOST_BARS + 1)
    assert "it is cut where more bars would be too many to tell apart" in text
    # A staircase has two corners for each of its steps.
    assert max(len(line.split()) for line in re.findall(r'points="([^"]+)"', text)) <= 2 * 402


# -- the folder ------------------------------------------------------------------------------


def test_a_report_is_a_folder_with_a_page(tmp_path: Path) -> None:
    page = write_report(tmp_path / "out", compared())
    assert page == tmp_path / "out" / "index.html"
    assert page.read_text().endswith("</html>\n")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_keeps_what_else_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "index.html").write_text("old")
    write_report(tmp_path, compared())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "notes.txt"]
    assert (tmp_path / "index.html").read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.parent.glob(".*partial")] == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_report_that_fails_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, text: str, encoding: str) -> int:
        path.write_bytes(text[:100].encode())
        raise error

    monkeypatch.setattr(Path, "write_text", fails)
    told = UsageError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(told):
        write_report(tmp_path / "out", compared())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"out cannot be written: No such file or directory"):
        write_report(tmp_path / "nowhere" / "out", compared())


def test_a_folder_in_the_place_of_the_page_is_told_before_any_work(tmp_path: Path) -> None:
    check_report(tmp_path)
    (tmp_path / "index.html").mkdir()
    with pytest.raises(UsageError, match=r"cannot be written: index.html in it is a folder"):
        check_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


# -- colours ---------------------------------------------------------------------------------


def test_a_policy_has_the_same_colour_in_every_report() -> None:
    assert styles_of(["wf-las", "tiresias"])["tiresias"] == styles_of(["tiresias"])["tiresias"]
    assert len(set(styles_of(["mine", "fifo", "yours", "tiresias"]).values())) == 4
    assert len(styles_of(map(str, range(25)))) == 25


def test_colours_are_seen_on_their_ground() -> None:
    """A contrast of 3 is what WCAG asks of lines in charts."""
    for style in STYLES:
        assert contrast(style.light, "#ffffff") >= 3
        assert contrast(style.dark, "#14171b") >= 3


def contrast(one: str, two: str) -> float:
    low, high = sorted(brightness(each) for each in (one, two))
    return (high + 0.05) / (low + 0.05)


def brightness(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])


@pytest.mark.parametrize(
    ("held", "asked", "name"),
    [(1, 4, "h0"), (2, 4, "h0"), (3, 4, "h1"), (4, 4, "h2"), (5, 4, "h3"), (8, 4, "h4")],
)
def test_held_and_asked_give_a_colour(held: int, asked: int, name: str) -> None:
    assert held_class(held, asked).name == name


# -- the Gantt chart -------------------------------------------------------------------------


def placed(bars: list[Bar]) -> list[tuple[str, float, int, int]]:
    return [(bar.span.job, bar.span.begin_s, bar.low, bar.high) for bar in bars]


def test_a_job_keeps_its_gpus_when_it_grows_and_shrinks() -> None:
    spans = [
        Span("a", 0.0, 10.0, 2, 2),
        Span("a", 10.0, 20.0, 4, 2),
        Span("a", 20.0, 30.0, 1, 2),
        Span("b", 20.0, 30.0, 3, 3),
    ]
    assert placed(stacked(spans, 0.0, 30.0, 4)) == [
        ("a", 0.0, 0, 2),
        ("a", 10.0, 0, 4),
        ("a", 20.0, 0, 1),
        ("b", 20.0, 1, 4),
    ]


def test_a_job_in_two_places_has_two_bars() -> None:
    spans = [
        Span("a", 0.0, 10.0, 1, 1),
        Span("b", 0.0, 30.0, 2, 2),
        Span("c", 0.0, 10.0, 1, 1),
        Span("d", 10.0, 30.0, 2, 2),
    ]
    found = placed(stacked(spans, 0.0, 30.0, 4))
    assert ("b", 0.0, 0, 2) in found
    assert [each for each in found if each[0] == "d"] == [("d", 10.0, 2, 4)]
    spans[1:3] = [Span("c", 0.0, 30.0, 1, 1), Span("b", 0.0, 10.0, 2, 2)]
    spans[3] = Span("d", 10.0, 30.0, 3, 3)
    found = placed(stacked(spans, 0.0, 30.0, 4))
    assert [each for each in found if each[0] == "c"] == [("c", 0.0, 3, 4)]
    assert [each for each in found if each[0] == "d"] == [("d", 10.0, 0, 3)]


def test_no_gpu_is_drawn_for_two_jobs_at_a_time() -> None:
    spans = [Span(f"j{i}", float(i % 50), i % 50 + 1.0 + i % 7, 1 + i % 4, 2) for i in range(200)]
    bars = stacked(spans, 0.0, 60.0, 16)
    held = sum(bar.high - bar.low for bar in bars)
    assert held == sum(span.gpus for span in spans)
    for moment in range(60):
        now = [b for b in bars if b.span.begin_s <= moment < b.span.end_s]
        numbers = [n for bar in now for n in range(bar.low, bar.high)]
        assert len(numbers) == len(set(numbers))


def test_a_window_is_cut_where_bars_become_too_many() -> None:
    few, many_bars = compared()[0], many("fifo", jobs=10, spans=2000)
    whole = window_of([few])
    assert whole is not None
    assert (whole.begin_s, whole.end_s, whole.whole) == (0.0, 200.0, True)
    cut = window_of([many_bars])
    assert cut is not None
    assert (cut.begin_s, cut.end_s, cut.whole) == (0.0, 1501.0, False)


def test_windows_that_do_not_meet_are_none() -> None:
    one = compared()[0]
    assert window_of([one, replace(one, window_s=(300.0, 400.0))]) is None


# -- axes ------------------------------------------------------------------------------------


def labels(scale: Scale) -> list[str]:
    assert [tick.at for tick in scale.ticks] == sorted(tick.at for tick in scale.ticks)
    assert all(0 <= tick.at <= 1 for tick in scale.ticks)
    return [tick.label for tick in scale.ticks]


@pytest.mark.parametrize("high", [1e3, 1e7, 1e10, 1e13, 1e16])
def test_an_axis_of_times_has_few_names_however_long_it_is(high: float) -> None:
    assert 2 <= len(labels(time_scale(0.0, high))) <= 10


def test_a_logarithmic_axis_names_units_that_people_know() -> None:
    axis = log_time_scale(3.0, 700_000.0)
    assert (axis.low, axis.high) == (2.0, 864_000.0)
    assert labels(axis) == ["10 s", "1 min", "10 min", "1 h", "1 d", "10 d"]
    assert axis.at(axis.low) == 0
    assert axis.at(axis.high) == 1
    assert axis.at(0.0) == 0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (100.0, 200.0, ["1 min", "2 min", "5 min"]),
        (100.0, 100.0, ["1 min", "2 min"]),
        (0.0, 0.0, ["0.01 s", "0.02 s"]),
        (0.5, 0.5, ["0.5 s", "1 s"]),
        (1e12, 1e12, ["5000 d"]),
    ],
)
def test_a_short_logarithmic_axis_is_named_too(
    low: float, high: float, expected: list[str]
) -> None:
    axis = log_time_scale(low, high)
    assert axis.high > axis.low
    assert labels(axis) == expected


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (0.0, ["0"]),
        (45.0, ["0", "10 s", "20 s", "30 s", "40 s"]),
        (5400.0, ["0", "15 min", "30 min", "45 min", "60 min", "75 min", "90 min"]),
        (86_400.0 * 75, ["0", "10 d", "20 d", "30 d", "40 d", "50 d", "60 d", "70 d"]),
    ],
)
def test_a_time_axis_has_round_steps(high: float, expected: list[str]) -> None:
    assert labels(time_scale(0.0, high)) == expected


def test_a_window_is_named_from_its_beginning() -> None:
    axis = time_scale(12_345.0, 12_345.0 + 7200, since=12_345.0)
    assert labels(axis) == ["0", "15 min", "30 min", "45 min", "60 min", *(f"{m} min" for m in (
        75, 90, 105, 120))]  # fmt: skip


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (0.0, ["0", "1"]),
        (2.0, ["0", "1", "2"]),
        (7.0, ["0", "2", "4", "6", "8"]),
        (9_500.0, ["0", "5,000", "10,000"]),
    ],
)
def test_counts_have_whole_steps(high: float, expected: list[str]) -> None:
    assert labels(count_scale(high)) == expected


def test_gpus_and_shares_end_where_there_are_no_more() -> None:
    assert labels(gpu_scale(2304)) == ["0", "576", "1,152", "1,728", "2,304"]
    assert labels(gpu_scale(6)) == ["0", "3", "6"]
    assert labels(gpu_scale(5)) == ["0", "5"]
    assert labels(share_scale()) == ["0 %", "25 %", "50 %", "75 %", "100 %"]
