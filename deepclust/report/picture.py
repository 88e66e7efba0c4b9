"""Pictures of numbers, drawn with Pillow alone: clusters against classes, and candidates for k."""

from __future__ import annotations

import io
import textwrap

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from deepclust.report.curves import SCORES
from deepclust.report.result import Report

MOST = 50  # rows and columns drawn
PAD = 16
INK, GREY, LINE, MARK = (33, 37, 41), (108, 117, 125), (222, 226, 230), (217, 72, 15)
SHADE_INK = (66, 146, 198)
SHADES = np.array([[255, 255, 255], [198, 219, 239], [66, 146, 198], [8, 48, 107]], dtype=float)


def confusion_png(report: Report) -> bytes:
    """Draw the table of a report that has labels: rows are clusters, columns classes.

    Shade is the share of the cluster's labelled pictures; the class that a cluster stands for
    is framed, and rows and columns are in the order that brings the frames on the diagonal.
    Of more than 50 clusters the largest are drawn, with their classes; the picture says so.
    Returns a PNG file.
    """
    assert report.table is not None
    rows, cols = order(report)
    table, match = report.table.dense(rows, cols), report.table.match[rows]
    side = int(np.clip(900 // max(len(rows), len(cols), 1), 20, 56))
    font, small = ImageFont.load_default(15), ImageFont.load_default(min(13, side * 2 // 5))
    named = {row.id: row.name for row in report.clusters} | {-1: "in no cluster"}
    left_names = [_short(named[int(key)]) for key in report.table.clusters[rows]]
    top_names = [_short(report.classes[col].name) for col in cols]
    left = max((int(font.getlength(name)) for name in left_names), default=0) + PAD + 8
    wide = max((int(font.getlength(name)) for name in top_names), default=0)
    flat = wide <= side - 6
    lines = _words(report, len(rows), len(cols))
    text_width = max(int(font.getlength(line)) for line in lines)
    top = PAD + 22 * len(lines) + 10 + (24 if flat else wide + 10)
    width = max(left + side * len(cols) + PAD, text_width + 2 * PAD)
    canvas = Image.new("RGB", (width, top + side * len(rows) + PAD), "white")
    draw = ImageDraw.Draw(canvas)
    for i, line in enumerate(lines):
        draw.text((PAD, PAD + 22 * i), line, font=font, fill=INK if i == 0 else GREY)
    for j, name in enumerate(top_names):
        x = left + side * j
        if flat:
            draw.text((x + side / 2, top - 5), name, font=font, fill=INK, anchor="md")
        else:
            strip = _upright(name, font)
            canvas.paste(strip, (x + (side - 20) // 2, top - 6 - strip.height))
    share = table / np.maximum(report.table.sizes[rows], 1)[:, None]
    for i, name in enumerate(left_names):
        y = top + side * i
        draw.text((left - 8, y + side / 2), name, font=font, fill=INK, anchor="rm")
        for j in range(len(cols)):
            x = left + side * j
            box = (x, y, x + side, y + side)
            draw.rectangle(box, fill=_shade(share[i, j]), outline=LINE)
            if table[i, j] and side >= 24:
                ink = "white" if share[i, j] > 0.55 else INK
                middle = (x + side / 2, y + side / 2)
                draw.text(middle, _count(table[i, j]), font=small, fill=ink, anchor="mm")
    for i, j in zip(*np.nonzero(match[:, None] == cols[None, :])):
        x, y = left + side * int(j), top + side * int(i)
        draw.rectangle((x, y, x + side, y + side), outline=MARK, width=2)
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def choice_png(rows: list[dict[str, float]], chosen: int, advice: str) -> bytes:
    """Draw the scores of each candidate for the number of clusters, one panel a score.

    rows: k and its scores, k rising. chosen: the guess, marked.
    Returns a PNG file.
    """
    wide, high, left, top = 640, 150, 64, PAD + 30
    font = ImageFont.load_default(14)
    lines = textwrap.wrap(advice, 88)
    canvas = Image.new(
        "RGB", (left + wide + 2 * PAD, top + 22 * len(lines) + len(SCORES) * (high + 60)), "white"
    )
    draw = ImageDraw.Draw(canvas)
    draw.text((PAD, PAD), "How many clusters", font=ImageFont.load_default(17), fill=INK)
    for i, line in enumerate(lines):
        draw.text((PAD, top + 22 * i), line, font=font, fill=GREY)
    ks = np.log([row["k"] for row in rows])
    x = left + wide * (ks - ks[0]) / max(float(np.ptp(ks)), 1e-9)
    for panel, name in enumerate(SCORES):
        y0 = top + 22 * len(lines) + 30 + panel * (high + 60)
        values = np.array([row[name] for row in rows])
        low, span = values.min(), max(float(np.ptp(values)), 1e-9)
        y = y0 + high - high * (values - low) / span
        draw.rectangle((left, y0, left + wide, y0 + high), outline=LINE)
        mark = float(np.interp(np.log(chosen), ks, x))
        draw.line((mark, y0, mark, y0 + high), fill=MARK, width=2)
        draw.line([*zip(x, y)], fill=SHADE_INK, width=3)
        draw.text((left, y0 - 20), name, font=font, fill=INK)
        draw.text((left - 6, y0), f"{values.max():.2f}", font=font, fill=GREY, anchor="rt")
        draw.text((left - 6, y0 + high), f"{low:.2f}", font=font, fill=GREY, anchor="rb")
        taken = -np.inf
        for place, row in zip(x, rows):
            if place - taken > 26 or row["k"] == chosen:
                ink = MARK if row["k"] == chosen else GREY
                draw.text(
                    (place, y0 + high + 4), f"{row['k']:.0f}", font=font, fill=ink, anchor="mt"
                )
                taken = place
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def order(report: Report) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns to draw: matched pairs first, the largest first; noise last."""
    table = report.table
    assert table is not None
    rows = np.argsort(-table.sizes[: table.k], kind="stable")[:MOST]
    match = table.match[rows]
    paired = match[match >= 0]
    others = np.argsort(-table.class_sizes, kind="stable")
    cols = np.concatenate([paired, others[~np.isin(others, paired)]])[:MOST]
    # A row that stands for no class goes where most of its pictures are.
    place = np.zeros(len(table.classes), dtype=np.int64)
    place[cols] = np.arange(len(cols))
    best = len(cols) + table.dense(rows, cols).argmax(axis=1)
    rows = rows[np.argsort(np.where(match >= 0, place[match], best), kind="stable")]
    return (np.append(rows, table.k) if table.noise else rows), cols


def _words(report: Report, rows: int, cols: int) -> list[str]:
    table = report.table
    assert table is not None
    shown = [
        f"{name.upper()} {value:.3f}"
        for name in ("acc", "nmi", "ari")
        if (value := report.scores[name]) is not None
    ]
    lines = [_short(f"{report.title}: {', '.join(shown)} over {table.n:,} labelled pictures", 90)]
    lines.append("rows: clusters; columns: classes; shade: share of the cluster; frame: matched")
    rest = []
    if table.k > MOST:
        rest.append(f"the {MOST} largest of {table.k:,} clusters")
    if len(table.classes) > MOST:
        rest.append(f"{MOST} of {len(table.classes):,} classes")
    return [*lines, "drawn: " + " and ".join(rest)] if rest else lines


def _short(text: str, most: int = 28) -> str:
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _upright(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> Image.Image:
    """The name turned to read upwards, 20 pixels wide, to stand on a column."""
    strip = Image.new("RGB", (int(font.getlength(name)) + 2, 20), "white")
    ImageDraw.Draw(strip).text((0, 1), name, font=font, fill=INK)
    return strip.rotate(90, expand=True)


def _shade(share: float) -> tuple[int, int, int]:
    at = np.linspace(0, 1, len(SHADES))
    r, g, b = (round(float(np.interp(share, at, SHADES[:, i]))) for i in range(3))
    return r, g, b


def _count(n: int) -> str:
    return f"{n}" if n < 10_000 else f"{n // 1000}k" if n < 1_000_000 else f"{n // 1_000_000}M"
