"""What else may explain a clustering: folders, sizes, light, colour, dates.

Each trait T of the pictures is compared with the clusters Z: I(Z;T) and H(Z|T) in bits, and AMI,
because the first grows by itself with many small groups (diagnostics of Cl-InfoNCE, Tsai et al.
2022, arXiv:2106.02869). A trait may go along with what was wanted, as green does with lawns; only
a person can tell, so what is much is said in words and never hidden.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepclust import metrics
from deepclust.data.images import ImageFile
from deepclust.report.sprites import Thumbnails

BINS = 8  # groups of a number, about equally many pictures in each
MUCH, SOME = 0.4, 0.15  # AMI
HUES = (
    "red", "orange", "yellow", "lime", "green", "sea green", "cyan", "azure", "blue", "violet",
    "magenta", "rose",
)  # fmt: skip
GREY = 0.12  # mean saturation below which a picture has no colour


@dataclass(frozen=True)
class Trait:
    """How far one trait goes along with the clusters.

    groups: values that occur. information: I(Z;T); left: H(Z|T), both in bits. share:
    I(Z;T)/H(Z), None where there is one cluster. ami: None where that is 0 over 0.
    example: the cluster that the trait fits best, in words.
    """

    name: str
    groups: int
    information: float
    left: float
    share: float | None
    ami: float | None
    example: str | None

    @property
    def word(self) -> str:
        value = self.ami or 0.0
        return "much" if value >= MUCH else "some" if value >= SOME else "little"


def traits(
    cluster: np.ndarray,
    files: Sequence[ImageFile | None],
    drawn: Thumbnails,
    titles: dict[int, str],
) -> list[Trait]:
    """Compare clusters (M,) with every trait that varies, the one that explains most first.

    Pictures that could not be read are left out. titles: of the clusters.
    """
    kept = [(i, file) for i, file in enumerate(files) if file is not None and drawn.seen[i]]
    if not kept:
        return []
    at = np.array([i for i, _ in kept])
    known = [file for _, file in kept]
    width, height = drawn.size[at].T.astype(np.float64)
    hue = np.where(drawn.colour[at] < GREY, len(HUES), drawn.hue[at])
    found = {
        "sub-folder": _words([file.name.rpartition("/")[0] or "(top)" for file in known]),
        "kind of file": _words([file.path.suffix.lower() or "(none)" for file in known]),
        "size in pixels": bins(width * height, "{:,.0f} px"),
        "shape (width / height)": bins(width / height, "{:.2f}"),
        "brightness": bins(100 * drawn.light[at], "{:.0f}%"),
        "colourfulness": bins(100 * drawn.colour[at], "{:.0f}%"),
        "main colour": _words([(*HUES, "grey")[i] for i in hue]),
        "date of the file": _words(_dates([file.mtime_ns for file in known])),
    }
    rows = [
        compare(name, cluster[at], code, words, titles)
        for name, (code, words) in found.items()
        if len(words) > 1
    ]
    return sorted(rows, key=lambda row: -(row.ami or 0.0))


def compare(
    name: str, cluster: np.ndarray, code: np.ndarray, words: list[str], titles: dict[int, str]
) -> Trait:
    """Compare clusters (M,) with a trait: code (M,) int64 into words."""
    table = metrics.contingency(cluster, code)
    bits = metrics.mutual_information(table)
    information, left = bits["information_bits"] or 0.0, bits["cluster_given_class_bits"] or 0.0
    whole = information + left
    return Trait(
        name, len(words), information, left, information / whole if whole > 1e-12 else None,
        metrics.ami(table), _example(cluster, code, words, titles),
    )  # fmt: skip


def _example(
    cluster: np.ndarray, code: np.ndarray, words: list[str], titles: dict[int, str]
) -> str | None:
    """Name the cluster that one value fills most beyond that value's share of all pictures."""
    usual = np.bincount(code, minlength=len(words)) / len(code)
    best: tuple[float, str] | None = None
    for key in np.unique(cluster[cluster >= 0]):
        inside = np.bincount(code[cluster == key], minlength=len(words))
        if inside.sum() < 5:
            continue
        share = inside / inside.sum()
        value = int((share - usual).argmax())
        gain = float(share[value] - usual[value])
        if share[value] >= 0.5 and (best is None or gain > best[0]):
            part = f"{share[value]:.0%} of {titles.get(int(key), f'cluster {key}')}"
            best = gain, f"{part} is {words[value]}, {usual[value]:.0%} of all pictures"
    return best[1] if best else None


def bins(values: np.ndarray, form: str) -> tuple[np.ndarray, list[str]]:
    """Cut numbers (M,) into at most 8 groups of about equal count; equal numbers stay together."""
    edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS))
    code = np.searchsorted(edges, values, side="left")
    used, code = np.unique(code, return_inverse=True)
    words = []
    for i in range(len(used)):
        part = values[code == i]
        low, high = form.format(part.min()), form.format(part.max())
        words.append(low if low == high else f"{low} to {high}")
    return code.reshape(-1), words


def _words(values: list[str]) -> tuple[np.ndarray, list[str]]:
    words, code = np.unique(np.array(values, dtype=object), return_inverse=True)
    return code.reshape(-1), words.tolist()


def _dates(stamps: list[int]) -> list[str]:
    """Days, or months or years where days are too many to say anything."""
    days = [time.strftime("%Y-%m-%d", time.gmtime(stamp / 1e9)) for stamp in stamps]
    for length in (10, 7):
        if len({day[:length] for day in days}) <= 2 * BINS:
            return [day[:length] for day in days]
    return [day[:4] for day in days]
