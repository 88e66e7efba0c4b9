"""A report as JSON, Markdown, CSV and rows for a screen.

Names come from strangers: in Markdown they are escaped, in CSV they cannot become formulas, and
in JSON they are the raw text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from deepclust import files, metrics
from deepclust.report.result import RULES, Report

MAIN = {"acc": "ACC", "nmi": "NMI", "ami": "AMI", "ari": "ARI", "purity": "purity"}
FREE = {
    "silhouette": "silhouette",
    "davies_bouldin": "Davies-Bouldin",
    "calinski_harabasz": "Calinski-Harabasz",
}


def write(report: Report, folder: Path, stem: str = "report") -> list[Path]:
    """Write <stem>.md, .csv and .json, and with labels confusion.png; return what was written.

    With another stem than "report" the picture is called <stem>.confusion.png.
    Raises OutputError if the place cannot be written to.
    """
    from deepclust.report.picture import confusion_png

    picture = folder / ("confusion.png" if stem == "report" else f"{stem}.confusion.png")
    paths = []
    if report.table is not None:
        files.write_bytes(picture, confusion_png(report))
        paths.append(picture)
    files.write_csv(folder / f"{stem}.csv", *_score_table(report))
    files.write_text(folder / f"{stem}.md", as_markdown(report, picture.name))
    if report.table is None:
        picture.unlink(missing_ok=True)  # of an earlier report, which this one replaces
    # The last file marks that the others are whole.
    files.write_json(folder / f"{stem}.json", report.to_json())
    return [folder / f"{stem}.{kind}" for kind in ("json", "md", "csv")] + paths


def cluster_rows(report: Report) -> list[list[str]]:
    """Return the clusters as rows of text, the first a heading; columns that nothing fills go."""
    rows = [
        [
            row.name, f"{row.size}", "" if row.confidence is None else f"{row.confidence:.2f}",
            "" if row.purity is None else f"{row.majority} {row.purity:.0%}",
            ", ".join(row.samples),
        ]
        for row in report.clusters
    ]  # fmt: skip
    table = [["cluster", "images", "confidence", "mostly", "such as"], *rows]
    kept = [i for i in range(5) if not rows or any(row[i] for row in rows)]
    return [[row[i] for i in kept] for row in table]


def score_rows(report: Report) -> list[list[str]]:
    """Return the main scores as rows of text, the first a heading; label-free ones if no labels."""
    if report.table is None:
        return [
            ["", *FREE.values()],
            [report.title, *(_number(report.label_free.get(name)) for name in FREE)],
        ]
    rows = [["", *MAIN.values()], [report.title, *(_number(report.scores[name]) for name in MAIN)]]
    if report.intervals:
        ends = {name: f"{low:.2f} to {high:.2f}" for name, (low, high) in report.intervals.items()}
        rows.append(["95 % interval", *(ends.get(name, "") for name in MAIN)])
    if report.covered:
        label = f"without {report.table.noise:,} outliers"
        rows.append([label, *(_number(report.covered[name]) for name in MAIN)])
    for name, scores in report.baselines.items():
        rows.append([name, *(_number(scores[key]) for key in MAIN)])
    rows.append(["all one class", _number(metrics.majority(report.table)), *[""] * (len(MAIN) - 1)])
    return rows


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    # Adding 0 turns -0.000 into 0.000.
    return f"{round(value, 3) + 0.0:.3f}" if abs(value) < 100 else f"{value:.1f}"


def _score_table(report: Report) -> tuple[list[str], list[list[Any]]]:
    """One line for the clustering and one for each baseline, every score a column."""
    names = list(metrics.SCORES) if report.table is not None else []
    ends = [f"{name}_{end}" for name in ("acc", "nmi", "ari") for end in ("low", "high")]
    header = ["clustering", *report.counts, *names, *(ends if names else []), *FREE]
    intervals = [v for name in ("acc", "nmi", "ari") for v in report.intervals.get(name, ("", ""))]
    free = [_blank(report.label_free.get(name)) for name in FREE]
    own = [_blank(report.scores[name]) for name in names]
    title = files.text_cell(report.title)
    rows = [[title, *report.counts.values(), *own, *(intervals if names else []), *free]]
    for name, scores in report.baselines.items():
        empty = [""] * (len(ends) + len(FREE))
        values = [_blank(scores[key]) for key in names]
        rows.append([files.text_cell(name), *[""] * len(report.counts), *values, *empty])
    return header, rows


def _blank(value: float | None) -> float | str:
    return "" if value is None else value


def as_markdown(report: Report, picture: str) -> str:
    """Return the report as a page of Markdown. picture: the file name of the confusion picture."""
    counted = [[_text(name.replace("_", " ")), f"{n:,}"] for name, n in report.counts.items()]
    parts = [f"# {_text(report.title)}", _list(report.verdict)]
    if report.warnings:
        parts += ["## Mind", _list(report.warnings)]
    heading, *rows = score_rows(report)
    parts += ["## Scores", _table(heading, rows), _table(["counted", ""], counted)]
    if report.table is not None:
        parts += [
            f"![clusters against classes]({picture})",
            "## All scores",
            _table(
                ["score", "value", "meaning"],
                [[k, _number(report.scores[k]), meaning] for k, meaning in metrics.SCORES.items()],
            ),
        ]
    if report.label_free:
        free = [[name, _number(report.label_free[key])] for key, name in FREE.items()]
        parts += ["## Without labels", _table(["score", "value"], free)]
    titles = [
        "cluster",
        "pictures",
        "labelled",
        "largest class",
        "purity",
        "stands for",
        "confidence",
    ]
    parts += ["## Clusters", _table(titles, [astuple(row)[1:-1] for row in report.clusters])]
    if report.classes:
        titles = ["class", "pictures", "cluster", "recall", "precision", "F1"]
        parts += ["## Classes", _table(titles, [astuple(row) for row in report.classes])]
    parts += ["## How it was counted", _list(list(RULES.values()))]
    came = [[_text(name), _text(value)] for name, value in report.source.items()]
    parts += [_table(["from", ""], came)] if came else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        if value is None or isinstance(value, float):
            return _number(value)
        return f"{value:,}" if isinstance(value, int) else _text(str(value))

    lines = [header, ["---"] * len(header), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(text: str) -> str:
    """Make text from outside plain text in Markdown, on one line."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", html.escape(text, quote=False))
