"""What the report does when it is touched: read-outs, policies shown or hidden, light or dark.

The page is whole without it. Names reach the document as text only, never as HTML. What is hidden
and the theme stand behind the # of the address, so that a view can be handed on.
"""

from __future__ import annotations

__all__ = ["SCRIPT"]

SCRIPT = r"""
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  const themeButton = document.getElementById("theme");
  const chips = all("#policies button");
  const hidden = new Set();

  // -- the address ---------------------------------------------------------------------------

  function remember() {
    const parts = [];
    if (hidden.size) parts.push("hide=" + [...hidden].map(encodeURIComponent).join(","));
    if (root.dataset.theme) parts.push("theme=" + root.dataset.theme);
    const behind = parts.length ? "#" + parts.join("&") : "";
    history.replaceState(null, "", location.href.split("#")[0] + behind);
  }

  function recall() {
    hidden.clear();
    delete root.dataset.theme;
    for (const part of location.hash.slice(1).split("&")) {
      const [name, value = ""] = part.split("=");
      if (name === "hide") value.split(",").forEach((each) => hidden.add(plain(each)));
      if (name === "theme" && /^(light|dark)$/.test(value)) root.dataset.theme = value;
    }
    show();
  }

  function plain(text) {
    try { return decodeURIComponent(text); } catch { return text; }
  }

  // -- policies and theme --------------------------------------------------------------------

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";

  function show() {
    for (const each of all(".series")) {
      each.classList.toggle("off", hidden.has(each.dataset.policy));
    }
    for (const chip of chips) {
      chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.policy)));
    }
    themeButton.textContent = isDark() ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  }

  for (const chip of chips) {
    chip.addEventListener("click", () => {
      const policy = chip.dataset.policy;
      if (!hidden.delete(policy)) hidden.add(policy);
      show();
      remember();
    });
  }
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
    remember();
  });
  themeButton.hidden = false;
  prefersDark.addEventListener("change", show);
  addEventListener("hashchange", recall);

  // -- how a value is said -------------------------------------------------------------------

  function time(value) {
    const whole = Math.round(value);
    if (whole < 60) return value.toFixed(value < 10 ? 2 : 1) + " s";
    for (const [unit, name, part, partName] of
      [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
      if (whole < unit) continue;
      const rest = Math.floor((whole % unit) / part);
      return Math.floor(whole / unit) + " " + name + (rest ? " " + rest + " " + partName : "");
    }
  }
  const said = {
    time,
    share: (value) => (100 * value).toFixed(1) + " %",
    count: (value) => value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 }),
  };

  function axis(text) {
    const [low, high, log, kind] = text.split(",");
    const a = Number(low), b = Number(high);
    const value = (share) => (log === "1" ? a * Math.pow(b / a, share) : a + (b - a) * share);
    return { value, say: (share) => said[kind](value(share)) };
  }

  // -- what the pointer reads ----------------------------------------------------------------

  const stairs = new WeakMap();

  // The step that a staircase stands on at x: null before its beginning and after its end.
  function level(line, x) {
    if (!stairs.has(line)) {
      const places = line.getAttribute("points").split(" ");
      stairs.set(line, places.map((place) => place.split(",").map(Number)));
    }
    const points = stairs.get(line);
    if (x < points[0][0]) return "before";
    if (x > points[points.length - 1][0]) return "after";
    let low = 0, high = points.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (points[middle][0] <= x) low = middle; else high = middle - 1;
    }
    return points[low][1];
  }

  function linesAt(plot, share) {
    const x = axis(plot.dataset.x), y = axis(plot.dataset.y);
    const ends = plot.dataset.sync === "time" ? { before: "-", after: "over" }
      : { before: y.say(0), after: y.say(1) };
    const rows = all("polyline:not(.off)", plot).map((line) => {
      const found = level(line, share * 1000);
      const value = typeof found === "string" ? ends[found] : y.say(1 - found / 1000);
      return [line.dataset.policy, value, line.classList[1].replace("s", "f")];
    });
    return { head: x.say(share), rows };
  }

  function barsAt(plot, share) {
    const groups = all("g", plot);
    const group = groups[Math.min(Math.floor(share * groups.length), groups.length - 1)];
    const rows = all("rect:not(.off)", group).map((bar) =>
      [bar.dataset.policy, time(Number(bar.dataset.v)), bar.classList[1]]);
    return { head: group.dataset.group + " GPU s", rows };
  }

  function ganttAt(plot, share, event) {
    const bar = event.target;
    const since = axis(plot.dataset.x);
    const begin = since.value(0);
    const after = (width) => "+ " + time(since.value(width / 1000) - begin);
    if (bar.dataset.j === undefined) {
      return { head: after(1000 * share), rows: [["idle", "", ""]] };
    }
    const from = Number(bar.getAttribute("x"));
    const until = from + Number(bar.getAttribute("width"));
    const [held, asked] = bar.dataset.g.split("/");
    return { head: "job " + bar.dataset.j, rows: [
      ["GPUs held", held, ""], ["GPUs asked for", asked, ""],
      ["from", after(from), ""], ["until", after(until), ""]] };
  }

  const readers = { lines: linesAt, bars: barsAt, gantt: ganttAt };

  function line(className, parts) {
    const row = document.createElement("div");
    row.className = className;
    for (const part of parts) row.append(part);
    return row;
  }

  function text(value) {
    const span = document.createElement("span");
    span.textContent = value;
    return span;
  }

  function tell(plot, event) {
    const box = plot.getBoundingClientRect();
    const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    const { head, rows } = readers[plot.dataset.kind](plot, share, event);
    const told = rows.map(([name, value, colour]) => {
      const parts = [text(name), text(value)];
      if (colour) {
        const dot = document.createElement("b");
        dot.className = "dot " + colour;
        parts.unshift(dot);
      }
      return line("row", parts);
    });
    tip.replaceChildren(line("head", [text(head)]), ...told);
    tip.hidden = false;
    const left = event.clientX + 16 + tip.offsetWidth > innerWidth
      ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
    tip.style.left = Math.max(left, 4) + "px";
    tip.style.top = Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 4) + "px";
    const sync = plot.dataset.sync;
    for (const each of all(".plot")) {
      const cursor = each.querySelector(".cursor");
      const same = each === plot || (sync && each.dataset.sync === sync);
      cursor.hidden = !same || plot.dataset.kind === "bars";
      cursor.style.left = 100 * share + "%";
    }
  }

  function hush() {
    tip.hidden = true;
    all(".cursor").forEach((cursor) => { cursor.hidden = true; });
  }

  for (const plot of all(".plot")) {
    plot.addEventListener("pointermove", (event) => tell(plot, event));
    plot.addEventListener("pointerdown", (event) => tell(plot, event));
    plot.addEventListener("pointerleave", hush);
  }
  addEventListener("scroll", hush, { passive: true });
  recall();
})();
"""
