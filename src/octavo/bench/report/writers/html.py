"""One page that opens from a file: charts, tables, facts, figures. It fetches nothing and has no script."""

from __future__ import annotations

from html import escape
from pathlib import Path

from octavo.bench.report.table import Table
from octavo.bench.report.writers import Report, Writer, as_json
from octavo.bench.report.writers.svg import svg

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a202c }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .5rem 0 } svg { max-width: 100%; height: auto }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #e2e8f0; text-align: right }
.words { text-align: left }
pre { overflow: auto; background: #f7fafc; padding: .7rem; font-size: 12px }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Of the page: it may fetch nothing, whatever a name in it says."""


def page(report: Report) -> str:
    """The whole file."""
    facts = Table(("", ""), tuple(report.facts.items()))
    charts = "".join(f"<figure>{svg([chart])}</figure>" for chart in report.charts)
    tables = "".join(_table(table) for table in report.tables)
    data = escape(as_json(report.data), quote=False)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(report.title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(report.title)}</h1>{tables}{charts}<h2>How it was measured</h2>{_table(facts)}"
        f"<details><summary>All figures</summary><pre>{data}</pre></details></body></html>\n"
    )


def _table(table: Table) -> str:
    head = _row(table.headers, table.sides, "th")
    rows = "".join(_row(row, table.sides, "td") for row in table.rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    return f"{title}<table><thead>{head}</thead><tbody>{rows}</tbody></table>{notes}"


def _row(cells: tuple[str, ...], sides: tuple[str, ...], kind: str) -> str:
    """As elements of a kind; those of words say so."""
    classes = (' class="words"' if side == "<" else "" for side in sides)
    inner = (f"<{kind}{each}>{escape(cell)}</{kind}>" for cell, each in zip(cells, classes, strict=True))
    return f"<tr>{''.join(inner)}</tr>"


def need() -> None:
    """Nothing."""


def write(report: Report, path: Path) -> None:
    """The page."""
    path.write_text(page(report), encoding="utf-8")


WRITER = Writer(".html", need, write)
