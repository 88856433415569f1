"""A self-contained HTML page: no network, no scripts; readable on phones, in print, in light and dark mode."""

import html
from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from kairode.files import atomic_write
from kairode.report.figures import inline_svg
from kairode.text import escaped, visible_lines

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1a202c; --soft: #5a6577; --line: #d8dee8; --card: #f4f6fa;
  --accent: #2b6cb0; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161d; --ink: #e6eaf1; --soft: #a3adbd; --line: #343c49;
  --card: #1b212b; --accent: #7ab3ef; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
p, li { max-width: 44rem; }
.lead { font-size: 1.08rem; }
.soft, figcaption, caption { color: var(--soft); font-size: .9rem; }
a { color: var(--accent); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); gap: .7rem; margin: 1.2rem 0;
  padding: 0; list-style: none; }
.facts li { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem; }
.facts b { display: block; font-size: 1.5rem; line-height: 1.25; }
figure { margin: 1rem 0; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
.wide:focus { outline: 2px solid var(--accent); }
figure svg { display: block; width: 100%; min-width: 34rem; height: auto; margin: 0 auto; padding: .5rem;
  color: var(--ink); }
figure svg text { fill: currentColor; }
figcaption { margin-top: .4rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
caption { text-align: left; padding: .4rem .6rem; caption-side: bottom; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th.wrap, td.wrap { text-align: left; white-space: normal; min-width: 14rem; }
tr.mark td { font-weight: 650; }
td small { display: block; color: var(--soft); font-weight: 400; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem;
  overflow-x: auto; font-size: .88rem; }
details { margin: .6rem 0; }
summary { cursor: pointer; color: var(--accent); }
@media print { :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --card: #f6f6f6; }
  main { max-width: none; padding: 0; } figure, table, .facts { break-inside: avoid; }
  .wide { overflow: visible; } figure svg { min-width: 0; } details::details-content { content-visibility: visible; } }
""".strip()


def paragraph(words: str, kind: str = "") -> str:
    return f"<p{f' class={kind!r}' if kind else ''}>{escaped(words)}</p>"


def picture(figure: Figure, name: str, words: str, caption: str = "") -> str:
    """A figure as SVG, with a description for screen readers."""
    figcaption = f"<figcaption>{escaped(caption)}</figcaption>" if caption else ""
    drawn = inline_svg(figure, name, words)
    return (
        f'<figure><div class="wide" tabindex="0" role="region" aria-label="{escaped(words)}">{drawn}</div>'
        f"{figcaption}</figure>"
    )


def facts(items: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f"<li><b>{escaped(big)}</b> {escaped(small)}</li>" for big, small in items)
    return f'<ul class="facts">{listed}</ul>'


def code(words: str) -> str:
    return f"<pre>{html.escape(visible_lines(words))}</pre>"


def folded(title: str, inside: str) -> str:
    return f"<details><summary>{escaped(title)}</summary>{inside}</details>"


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escaped(title)}</h2>\n" + "\n".join(part for part in parts if part) + "</section>"


def write_page(path: Path, title: str, parts: Iterable[str]) -> Path:
    inside = "\n".join(parts)
    icon = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'/%3E"
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escaped(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="{icon}">\n'
        f"<style>\n{CSS}\n</style>\n</head>\n<body>\n<main>\n<h1>{escaped(title)}</h1>\n{inside}\n</main>\n</body>\n</html>\n"
    )
    with atomic_write(path) as part:
        part.write_text(page, encoding="utf-8")
    return path
