"""How the report looks: one style sheet, light and dark, from a desk's width to a telephone's."""

from __future__ import annotations

from edl.simulator.chart_palette import HELD, STYLES

__all__ = ["style_sheet"]

LIGHT = {
    "back": "#ffffff",
    "raised": "#f5f6f8",
    "text": "#1b1e23",
    "quiet": "#565d67",
    "line": "#d9dce1",
    "grid": "#e6e8ec",
    "accent": "#0b5cad",
}
DARK = {
    "back": "#14171b",
    "raised": "#1e2228",
    "text": "#e9ebee",
    "quiet": "#a6adb8",
    "line": "#3a404a",
    "grid": "#2a2f37",
    "accent": "#7db8f5",
}

SHEET = """
* { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 0 1.5rem 4rem; max-width: 1240px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
header { display: flex; gap: 1rem; align-items: flex-start; justify-content: space-between;
  padding-top: 1.5rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .15rem; }
h3 { font-size: .95rem; margin: 1rem 0 .3rem; font-weight: 600; }
p { margin: .25rem 0 .6rem; color: var(--quiet); max-width: 95ch; overflow-wrap: anywhere;
  text-wrap: pretty; }
.lead { color: var(--text); }
button { font: inherit; color: inherit; background: var(--raised); border: 1px solid var(--line);
  border-radius: 6px; padding: .25rem .7rem; cursor: pointer; }
button:focus-visible, summary:focus-visible, .scroll:focus-visible, a:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px; }
#policies { position: sticky; top: 0; z-index: 3; display: flex; flex-wrap: wrap; gap: .4rem;
  align-items: center; padding: .6rem 0; background: var(--back);
  border-bottom: 1px solid var(--line); }
#policies button { display: inline-flex; align-items: center; gap: .5rem; white-space: nowrap; }
#policies button[aria-pressed="false"] { opacity: .5; text-decoration: line-through; }
#policies svg { width: 26px; height: 10px; }
#policies line { stroke-width: 3; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem; }
.wide table { width: 100%; }
th, td { text-align: right; padding: .35rem .55rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { font-weight: 600; color: var(--quiet); }
thead th { white-space: normal; vertical-align: bottom; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--back);
  color: var(--text); }
tbody tr.base th::after { content: "baseline"; display: block; font-weight: 400;
  font-size: .75rem; color: var(--quiet); }
td.best { font-weight: 700; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts th { vertical-align: top; white-space: nowrap; }
figure { margin: 0; }
.plot { position: relative; margin: .8rem .9rem 2rem 4rem; border-left: 1px solid var(--line);
  border-bottom: 1px solid var(--line); touch-action: pan-y; }
.plot.titled { margin-bottom: 3.4rem; }
.plot > svg { position: absolute; inset: 0; width: 100%; height: 100%; display: block;
  overflow: visible; }
.plot i { position: absolute; pointer-events: none; }
.gx { top: 0; bottom: 0; width: 1px; background: var(--grid); }
.gy { left: 0; right: 0; height: 1px; background: var(--grid); }
.cursor { top: 0; bottom: 0; width: 1px; background: var(--quiet); }
.tx, .ty, .xtitle { position: absolute; font-size: 12px; line-height: 1.2; color: var(--quiet);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
.tx { top: 100%; margin-top: 9px; transform: translateX(-50%); }
.tx.group { white-space: normal; text-align: center; padding: 0 .2rem; }
.ty { right: 100%; margin-right: 8px; transform: translateY(50%); }
.xtitle { top: 100%; margin-top: 1.9rem; left: 0; right: 0; text-align: center;
  white-space: normal; }
polyline { fill: none; stroke-width: 1.8; vector-effect: non-scaling-stroke;
  stroke-linejoin: round; }
.bars.edged rect { stroke: var(--back); stroke-width: 1; vector-effect: non-scaling-stroke; }
.bars.thin rect { shape-rendering: crispEdges; }
.bars.fine rect { stroke: var(--back); stroke-width: .4; vector-effect: non-scaling-stroke; }
.names { pointer-events: none; }
.names span { position: absolute; overflow: hidden; white-space: nowrap; font-size: 11px;
  line-height: 14px; padding: 0 4px; text-overflow: ellipsis; }
.dot { display: inline-block; width: .7rem; height: .7rem; margin-right: .45rem;
  border-radius: 2px; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .4rem 0; padding: 0;
  list-style: none; font-size: .85rem; color: var(--quiet); }
.legend b { display: inline-block; width: 1.1rem; height: .75rem; margin-right: .4rem;
  vertical-align: -1px; }
details { margin: 0 0 1rem; }
summary { cursor: pointer; color: var(--accent); font-size: .9rem; width: fit-content; }
code { font: .85rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
ul.notes { margin: .3rem 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
#tip { position: fixed; z-index: 5; pointer-events: none; max-width: min(320px, 90vw);
  padding: .45rem .6rem; background: var(--raised); border: 1px solid var(--line);
  border-radius: 6px; box-shadow: 0 2px 10px rgb(0 0 0 / .25); font-size: .82rem; }
#tip div { display: flex; gap: .5rem; overflow-wrap: anywhere; }
#tip .dot { flex: none; align-self: center; margin-right: 0; }
#tip .row span:last-child { margin-left: auto; padding-left: .6rem;
  font-variant-numeric: tabular-nums; }
#tip .head { font-weight: 600; }
.off { display: none; }
@media (max-width: 560px) {
  body { padding: 0 .8rem 3rem; }
  h1 { font-size: 1.3rem; }
  .plot { margin-left: 3.2rem; margin-right: .6rem; }
  .tx.thin { display: none; }
  .gx { opacity: .6; }
  .tx.group { font-size: 11px; }
  .plot[data-kind="bars"] { margin-bottom: 4rem; }
  .plot[data-kind="bars"] .xtitle { margin-top: 2.6rem; }
  .names { display: none; }
  th, td { padding: .3rem .5rem; }
  #policies { flex-wrap: nowrap; overflow-x: auto; }
}
@media print { #theme, #tip, details { display: none; } #policies { position: static; } }
"""


def style_sheet() -> str:
    """Colours as variables, so that a theme is one list of them."""
    light = {**LIGHT, **_colours("light")}
    dark = {**DARK, **_colours("dark")}
    series = "".join(
        f".s{i} {{ stroke: var(--s{i}); stroke-dasharray: {style.dash or 'none'}; }}\n"
        f".f{i} {{ fill: var(--s{i}); }} b.f{i} {{ background: var(--s{i}); }}\n"
        for i, style in enumerate(STYLES)
    )
    held = "".join(
        f".{each.name} {{ fill: var(--{each.name}); background: var(--{each.name}); }}\n"
        f".t{each.name} {{ color: var(--t{each.name}); }}\n"
        for each in HELD
    )
    return (
        f":root {{ {_declared(light)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_declared(dark)} }} }}\n"
        f':root[data-theme="light"] {{ color-scheme: light; {_declared(light)} }}\n'
        f':root[data-theme="dark"] {{ color-scheme: dark; {_declared(dark)} }}\n'
        f"{SHEET}{series}{held}"
    )


def _colours(theme: str) -> dict[str, str]:
    series = {f"s{i}": getattr(style, theme) for i, style in enumerate(STYLES)}
    held = {each.name: getattr(each, theme) for each in HELD}
    return series | held | {f"t{name}": _text_on(colour) for name, colour in held.items()}


def _text_on(colour: str) -> str:
    """Black or white, whichever is easier to read on it."""
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    # Where black and white have the same contrast, by WCAG's formula.
    return "#000000" if bright > 0.179 else "#ffffff"


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4)


def _declared(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
