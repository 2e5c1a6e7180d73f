"""The report's page as text: its head, its tables, and what stands around the charts.

One file without a network: style and script are inside, and a policy (CSP) in its head lets no
other script run and nothing be fetched. Every text is escaped here.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape

from edl.simulator.chart_palette import HELD
from edl.simulator.page_script import SCRIPT
from edl.simulator.page_style import style_sheet

__all__ = ["Row", "chips", "facts", "held_legend", "notes", "shell", "table"]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table. `best` are the places of cells that no other row outdoes."""

    name: str
    cells: Sequence[str]
    best: frozenset[int] = frozenset()
    baseline: bool = False


def shell(*, title: str, body: str) -> str:
    digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    rules = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="generator" content="edl simulate">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n'
        f"<style>{style_sheet()}</style>\n</head>\n<body>\n{body}\n"
        f'<div id="tip" role="status" hidden></div>\n<script>{SCRIPT}</script>\n</body>\n</html>\n'
    )


def chips(styles: Mapping[str, int]) -> str:
    """The legend of all charts, which is also where policies are hidden."""
    each = "".join(
        f'<button type="button" aria-pressed="true" data-policy="{escape(policy)}" '
        f'title="Show or hide {escape(policy)}">'
        f'<svg viewBox="0 0 26 10" aria-hidden="true"><line class="s{style}" x1="0" y1="5" '
        f'x2="26" y2="5"/></svg>{escape(policy)}</button>'
        for policy, style in styles.items()
    )
    return f'<nav id="policies" aria-label="Policies in the charts">{each}</nav>'


def table(
    caption: str, first: str, columns: Sequence[str], rows: Sequence[Row], *, wide: bool = False
) -> str:
    """It scrolls sideways in a box of its own where the page is narrow."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in (first, *columns))
    body = "".join(_row(row) for row in rows)
    return (
        f'<div class="scroll{" wide" if wide else ""}" role="region" tabindex="0" '
        f'aria-label="{escape(caption)}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """What and its value, a line each; a command is set as code."""
    rows = "".join(
        f'<tr><th scope="row">{escape(what)}</th><td>{_value(what, value)}</td></tr>'
        for what, value in pairs
    )
    return f'<div class="scroll facts"><table><tbody>{rows}</tbody></table></div>'


def notes(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def held_legend() -> str:
    """What the colours of the Gantt chart say."""
    each = "".join(f'<li><b class="{held.name}"></b>{escape(held.label)}</li>' for held in HELD)
    return f'<ul class="legend" aria-label="Colours: GPUs held, of those asked for">{each}</ul>'


def _row(row: Row) -> str:
    cells = "".join(
        f'<td class="best">{escape(cell)}</td>' if place in row.best else f"<td>{escape(cell)}</td>"
        for place, cell in enumerate(row.cells)
    )
    kind = ' class="base"' if row.baseline else ""
    return f'<tr{kind}><th scope="row">{escape(row.name)}</th>{cells}</tr>'


def _value(what: str, value: str) -> str:
    return f"<code>{escape(value)}</code>" if what == "Command" else escape(value)
