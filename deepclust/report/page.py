"""The one page a clustering leaves: a file that opens anywhere, with nothing from outside.

Everything is inlined, and the page's own policy forbids it to load or send anything. Names,
labels and settings come from strangers: they enter the markup through Jinja's escaping, and the
script as JSON in which no character can end the element.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from deepclust import __version__, files
from deepclust.data.labels import Labels
from deepclust.errors import DeepclustError, Stopped
from deepclust.progress import SILENT, Progress
from deepclust.report import contents, sprites
from deepclust.report.contents import Contents
from deepclust.report.curves import HEIGHT, WIDTH, curves, of_candidates
from deepclust.report.picture import order
from deepclust.report.result import Report
from deepclust.report.tables import score_rows
from deepclust.run import Run

NAME = "report.html"
SPARE = 40_000  # bytes kept free of thumbnails
PURE = 0.7  # share of the largest class from which on a cluster is called one thing
HEAT = 60  # rows and columns of the heat map
COLOURS = (
    "#4573d2", "#e0803a", "#2f9d72", "#c74a6b", "#8b66d0", "#b5912a", "#2c9bb3", "#7d8f35",
    "#cf5fa9", "#74808f", "#a65a3a", "#5aa84f",
)  # fmt: skip


def write(
    run: Run, folder: Path, *, report: Report | None = None, labels: Labels | None = None,
    progress: Progress = SILENT,
) -> Path | None:  # fmt: skip
    """Write report.html for the clustering in `folder` of a run; return its path.

    report, labels: what `evaluate` found, for the scores and the labels of pictures.
    The page is an extra: pictures that are gone are drawn grey, and where it cannot be made at
    all a warning says so and None comes back.
    """
    try:
        found = contents.gather(run, folder, labels, progress)
        text = render(run, folder, found, report)
        files.write_text(folder / NAME, text)
    except Stopped:
        raise
    except DeepclustError as error:
        (folder / NAME).unlink(missing_ok=True)  # of an earlier clustering
        progress.warn(f"no {NAME}: {error.message}")
        return None
    if found.missing:
        progress.warn(f"{found.missing:,} pictures of {NAME} are grey: they could not be read")
    return folder / NAME


def render(run: Run, folder: Path, found: Contents, report: Report | None = None) -> str:
    """Return the page as text."""
    script = f"(() => {{\n{_template('page.js')}{{\n{_template('edit.js')}}}\n}})();"
    data = _data(found, folder)
    room = contents.limit(found.total) - len(data) - SPARE
    room -= 260 * sum(len(g.near) + len(g.across) + len(g.edge) for g in found.groups)
    sheets = sprites.encode(found.drawn.sheets, max(room, 100_000))
    details = _details(folder)
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=folder.name,
            source=run.image_root.name,
            style=_template("page.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            data=data,
            sheets=sheets,
            columns=sprites.COLUMNS,
            found=found,
            colours=[colour(g) for g in range(len(found.groups))],
            cells=_cells(found),
            verdict=[*contents.verdict(found), *_by_labels(report)],
            tiles=_tiles(found, report),
            warnings=_warnings(run, details, report),
            facts=_facts(run, details),
            skipped=contents.skipped(run),
            scores=None if report is None else score_rows(report),
            report=report,
            heat=None if report is None or report.table is None else _heat(report, found),
            curves=curves(contents.history(run)),
            guesses=of_candidates(contents.candidates(folder)),
            advice=details.get("advice", ""),
            curve_size=(WIDTH, HEIGHT),
            version=__version__,
            made=time.strftime("%Y-%m-%d %H:%M"),
        )
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("deepclust.report", "templates"),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters["shown"] = shown
    environment.filters["percent"] = lambda value: "–" if value is None else f"{value:.0%}"
    environment.filters["number"] = lambda value: "–" if value is None else f"{value:.3f}"
    environment.filters["count"] = lambda value: f"{value:,}"
    return environment


def _template(name: str) -> str:
    """Return a file of ours as it is: it is trusted, and has to keep every character."""
    loader, environment = _environment().loader, _environment()
    assert loader is not None
    return loader.get_source(environment, name)[0]


def shown(text: str) -> str:
    """Show what cannot be seen, or turns text around, as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def as_json(value: Any) -> str:
    """Return JSON that may stand in a script element: ASCII, and free of <, > and &."""
    text = json.dumps(files.plain(value), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def colour(g: int) -> str:
    """Return the colour of the cluster in place `g`: twelve set apart by hand, then by angle."""
    if g < len(COLOURS):
        return COLOURS[g]
    return f"hsl({g * 137.508 % 360:.0f} {45 + 10 * (g % 3)}% {46 + 5 * (g % 4)}%)"


def _data(found: Contents, folder: Path) -> str:
    """Return what the script needs to know of every picture, as columns."""
    classes = np.where(found.label >= 0, found.label, -1)
    return as_json(
        {
            "clustering": folder.name,
            "total": found.total,
            "names": found.names,
            "group": found.group,
            "second": found.second,
            "sure": (100 * found.sure).round().astype(int),
            "near": found.neighbours,
            "x": found.place[:, 0].round(4),
            "y": found.place[:, 1].round(4),
            "w": found.drawn.shape[:, 0].round(3),
            "h": found.drawn.shape[:, 1].round(3),
            "cell": found.drawn.cell,
            "label": classes,
            "classes": found.classes,
            "columns": sprites.COLUMNS,
            "groups": [
                {"id": g.id, "title": g.title, "size": g.size, "colour": colour(i)}
                for i, g in enumerate(found.groups)
            ],
            "colours": [colour(i) for i in range(len(found.classes))],
        }
    )


def _cells(found: Contents) -> dict[int, dict[str, Any]]:
    """Return, for every picture on a card, where its thumbnail is."""
    rows = {i for g in found.groups for i in (*g.near, *g.across, *g.edge)}
    per, columns, cell = sprites.COLUMNS**2, sprites.COLUMNS, found.drawn.cell.tolist()
    return {
        i: {
            "sheet": cell[i] // per,
            "row": cell[i] % per // columns, "column": cell[i] % columns,
            "w": round(float(found.drawn.shape[i, 0]), 3),
            "h": round(float(found.drawn.shape[i, 1]), 3),
        }
        for i in rows
    }  # fmt: skip


def _details(folder: Path) -> dict[str, Any]:
    try:
        found = files.read_json(folder / "clusters.json")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tiles(found: Contents, report: Report | None) -> list[tuple[str, str, str]]:
    """The few numbers to see first: value, what it is, what it means."""
    real = [group for group in found.groups if group.id >= 0]
    sure = [group.confidence for group in real if group.confidence is not None]
    tiles = [
        (f"{found.total:,}", "pictures", ""),
        (f"{len(real):,}", "clusters", ""),
        (f"{max((g.share for g in real), default=0):.0%}", "in the largest", ""),
    ]
    out = sum(group.size for group in found.groups if group.id < 0)
    if out:
        tiles.append((f"{out:,}", "in no cluster", ""))
    if sure:
        weights = [group.size for group in real if group.confidence is not None]
        mean = float(np.average(sure, weights=weights))
        tiles.append((f"{mean:.2f}", "mean confidence", "0 to 1"))
    if report is not None:
        for name, meaning in (
            ("acc", "pictures rightly placed"),
            ("nmi", "shared with the labels"),
            ("ari", "pairs rightly placed"),
        ):
            value = report.scores.get(name)
            if value is not None:
                tiles.append((f"{value:.2f}", name.upper(), meaning))
    return tiles


def _warnings(run: Run, details: dict[str, Any], report: Report | None) -> list[str]:
    lines: list[str] = [*run.info.get("warnings", []), *details.get("warnings", [])]
    left = contents.skipped(run)
    if left:
        some = ", ".join(f"{n:,} × {reason}" for reason, n in left[:3]) + ", …" * (len(left) > 3)
        lines.append(f"left out of the folder: {some}")
    if report is not None:
        lines += report.warnings
        lines += [line for line in report.verdict if line.startswith("does not beat")]
    return list(dict.fromkeys(str(line) for line in lines))


def _by_labels(report: Report | None) -> list[str]:
    """Say which clusters hold more than one class, where labels tell."""
    rows = [] if report is None else [row for row in report.clusters if row.purity is not None]
    if not rows:
        return []
    torn = [f"{row.name} ({row.purity:.0%})" for row in rows if (row.purity or 0) < PURE]
    if not torn:
        return [f"By the labels, every cluster holds at least {PURE:.0%} of one class."]
    some = ", ".join(torn[:5]) + (f" and {len(torn) - 5} more" if len(torn) > 5 else "")
    how_many = "one cluster holds" if len(torn) == 1 else f"{len(torn)} of {len(rows)} hold"
    return [f"By the labels, {how_many} under {PURE:.0%} of one class: {some}."]


def _facts(run: Run, details: dict[str, Any]) -> list[tuple[str, str]]:
    """How it was done, in pairs. No path outside the folder: the page is made to be sent."""
    info = run.info
    settings, images = info.get("settings", {}), info.get("images", {})
    encoder, machine = info.get("encoder", {}), info.get("machine", {})
    asked = details.get("k_asked")
    pairs: Iterable[tuple[str, Any]] = (
        ("run", run.name),
        ("pictures", f"{images.get('used', 0):,} used, {images.get('skipped', 0):,} skipped"),
        ("method", "none, a frozen encoder" if (m := settings.get("method")) == "none" else m),
        ("epochs", info.get("epochs")),
        ("encoder", encoder.get("name")),
        ("its weights", encoder.get("origin")),
        ("algorithm", details.get("algorithm")),
        ("clusters", f"{details.get('k_found', '?')} found, {asked or 'none'} asked for"),
        ("number of clusters", details.get("advice")),
        ("seed", details.get("seed")),
        ("began", info.get("started")),
        ("clustering took", f"{details['seconds']} s" if "seconds" in details else None),
        ("device", machine.get("device")),
        ("deepclust", machine.get("deepclust")),
    )
    return [(name, str(value)) for name, value in pairs if value is not None]


def _heat(report: Report, found: Contents) -> dict[str, Any]:
    """The table of clusters against classes, rows and columns in the order of the matching."""
    assert report.table is not None
    rows, cols = order(report)
    rows, cols = rows[:HEAT], cols[:HEAT]
    table = report.table.dense(rows, cols)
    place = {group.id: g for g, group in enumerate(found.groups)}
    codes = {name: i for i, name in enumerate(found.classes)}
    names = [report.classes[int(col)].name for col in cols]
    sizes = report.table.sizes[rows]
    shown_rows = []
    for i, row in enumerate(rows):
        key = int(report.table.clusters[row])
        g = place.get(key)
        cells = [
            {
                "count": int(n), "share": float(n) / max(int(sizes[i]), 1),
                "label": codes.get(names[j], -1), "match": int(report.table.match[row]) == cols[j],
            }
            for j, n in enumerate(table[i])
        ]  # fmt: skip
        title = found.groups[g].title if g is not None else f"Cluster {key}"
        shown_rows.append({"title": title, "group": g, "cells": cells})
    whole = len(rows) == len(report.table.clusters) and len(cols) == len(report.table.classes)
    return {"classes": names, "rows": shown_rows, "whole": whole}
