"""The report on a clustering: what was counted, the scores, and what they mean in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from deepclust import files, metrics
from deepclust.data.labels import Labels

RULES = {
    "matching": "each cluster stands for at most one class and each class for one cluster, so that"
    " the most pictures are right; the rest counts as wrong in ACC, with any number of clusters",
    "noise": "a picture in no cluster (-1) is wrong in ACC and purity; in NMI, AMI, ARI, FMI,"
    " homogeneity and completeness all of these are one group more",
    "unlabelled": "pictures without a label are left out of every score that needs labels",
    "intervals": "95 % bootstrap over pictures: what another draw of as many pictures might give;"
    " ACC keeps the matching, and the spread is laid around the score",
    "label_free": "cosine distances in the embedding, over all pictures that are in a cluster;"
    " to compare clusterings of one embedding, not of two",
}
COMPARED = ("acc", "nmi", "ari")
CELLS = 250_000  # a contingency table above this stays out of report.json
FEW = 100  # labelled pictures below which an interval is rough


@dataclass(frozen=True)
class ClusterRow:
    """One cluster. id: its number. size: all its pictures; labelled: those with a label.

    majority: its largest class, with `purity` of the labelled pictures. match: the class that
    it stands for in ACC. confidence: the mean, or None where none is known.
    samples: names of its three surest pictures, [] where names are not known.
    """

    id: int
    name: str
    size: int
    labelled: int
    majority: str | None
    purity: float | None
    match: str | None
    confidence: float | None
    samples: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ClassRow:
    """One class. cluster: the cluster that stands for it, with recall, precision and F1."""

    name: str
    pictures: int
    cluster: str | None
    recall: float
    precision: float | None
    f1: float


@dataclass(frozen=True)
class Report:
    """Everything that `evaluate` found. Scores by name are those of `metrics.SCORES`.

    title: name of the clustering. source: where clusters, labels and pictures came from.
    counts: pictures, clusters, outliers; with labels also classes, labelled, unlabelled and
        unmatched_rows.
    scores: {} without labels. intervals: low and high end, for ACC, NMI and ARI.
    covered: scores over the pictures that are in a cluster; {} where all are.
    baselines: scores of other clusterings of the same pictures, by name.
    table: the contingency table, or None without labels. classes of it are codes: see `classes`.
    warnings, verdict: lines of text.
    paths: the files written.
    """

    title: str
    source: dict[str, str]
    counts: dict[str, int]
    scores: dict[str, float | None]
    intervals: dict[str, tuple[float, float]]
    covered: dict[str, float | None]
    baselines: dict[str, dict[str, float | None]]
    label_free: dict[str, float | None]
    clusters: list[ClusterRow]
    classes: list[ClassRow]
    table: metrics.Contingency | None
    warnings: list[str] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)

    @property
    def coverage(self) -> float | None:
        """Share of all pictures that are in a cluster."""
        n = self.counts["pictures"]
        return 1 - self.counts["outliers"] / n if n else None

    @property
    def contingency(self) -> np.ndarray | None:
        """(k, c) int64: clusters with a labelled picture, noise last, against classes."""
        return None if self.table is None else self.table.dense()

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data; a score that is not defined is None."""
        table = self.table
        small = table is not None and len(table.clusters) * len(table.classes) <= CELLS
        return files.plain(
            {
                "format": "deepclust-report",
                "version": 1,
                "title": self.title,
                "source": self.source,
                "counts": self.counts,
                "coverage": self.coverage,
                "scores": self.scores,
                "intervals_95": self.intervals,
                "scores_without_outliers": self.covered or None,
                "largest_class": metrics.majority(table) if table is not None else None,
                "baselines": self.baselines,
                "label_free": self.label_free,
                "clusters": [asdict(row) for row in self.clusters],
                "classes": [asdict(row) for row in self.classes],
                "contingency": {
                    "clusters": table.clusters,
                    "classes": [row.name for row in self.classes],
                    "counts": table.dense(),
                }
                if table is not None and small
                else None,
                "warnings": self.warnings,
                "verdict": self.verdict,
                "rules": RULES,
                "what_scores_mean": metrics.SCORES,
            }
        )


def make(
    cluster: np.ndarray,
    labels: Labels | None,
    *,
    title: str,
    source: dict[str, str] | None = None,
    words: dict[int, str] | None = None,
    confidence: np.ndarray | None = None,
    names: list[str] | None = None,
    embedding: np.ndarray | None = None,
    baselines: dict[str, np.ndarray] | None = None,
    warnings: list[str] | None = None,
    rounds: int = 1000,
    seed: int = 0,
) -> Report:
    """Score a clustering and say what the scores mean.

    cluster: (N,) int64, -1 is noise. labels: of the same N pictures, or None.
    words: text ids of clusters. confidence: (N,) float. names: of the N pictures.
    embedding: (N, d) float.
    baselines: other clusterings (N,) int64 by name. rounds: of the bootstrap.
    """
    ids, sizes = np.unique(cluster[cluster >= 0], return_counts=True)
    named = {int(i): (words or {}).get(int(i), f"cluster {i}") for i in ids}
    counts = {
        "pictures": len(cluster),
        "clusters": len(ids),
        "outliers": int((cluster < 0).sum()),
    }
    warnings = list(warnings or [])
    free = {} if embedding is None else metrics.label_free(embedding, cluster)
    means = None if confidence is None else _means(cluster, confidence, ids)
    table, others = None, {}
    if labels is not None:
        known = labels.code >= 0
        code = labels.code[known]
        table = metrics.contingency(cluster[known], code)
        others = {
            name: metrics.scores(metrics.contingency(other[known], code))
            for name, other in (baselines or {}).items()
        }
        counts |= {
            "classes": len(labels.classes),
            "labelled": labels.labelled,
            "unlabelled": labels.unlabelled,
            "unmatched_rows": labels.unmatched,
        }
        warnings += labels.warnings
    warnings += _warnings(counts)
    scores = {} if table is None else metrics.scores(table)
    ends = {} if table is None else metrics.intervals(table, rounds, seed)
    classes = [] if labels is None else labels.classes
    return Report(
        title=title,
        source=source or {},
        counts=counts,
        scores=scores,
        intervals=ends,
        covered=metrics.scores(metrics.covered(table)) if table is not None and table.noise else {},
        baselines=others,
        label_free=free,
        clusters=_cluster_rows(
            ids, sizes, named, means, table, classes, _samples(cluster, confidence, names)
        ),
        classes=[] if table is None else _class_rows(table, named, classes),
        table=table,
        warnings=warnings,
        verdict=_verdict(scores, ends, others, table, classes, free),
    )


def _means(cluster: np.ndarray, confidence: np.ndarray, ids: np.ndarray) -> list[float]:
    """The mean confidence of each cluster."""
    real = cluster >= 0
    code = np.searchsorted(ids, cluster[real])
    sums = np.bincount(code, weights=confidence[real], minlength=len(ids))
    return (sums / np.bincount(code, minlength=len(ids))).tolist()


def _samples(
    cluster: np.ndarray, confidence: np.ndarray | None, names: list[str] | None
) -> dict[int, list[str]]:
    """The names of the three surest pictures of each cluster."""
    found: dict[int, list[str]] = {}
    if names is None:
        return found
    sure = np.zeros(len(names)) if confidence is None else np.nan_to_num(confidence)
    for i in np.argsort(-sure, kind="stable"):
        such = found.setdefault(int(cluster[i]), [])
        if len(such) < 3:
            such.append(names[i])
    return found


def _cluster_rows(
    ids: np.ndarray,
    sizes: np.ndarray,
    named: dict[int, str],
    means: list[float] | None,
    table: metrics.Contingency | None,
    classes: list[str],
    samples: dict[int, list[str]],
) -> list[ClusterRow]:
    found: dict[int, tuple[int, str, float, str | None]] = {}
    if table is not None and len(table.row):
        ends = np.append(np.searchsorted(table.row, range(len(table.clusters))), len(table.row))
        for i, (first, last) in enumerate(pairwise(ends)):
            best = first + int(table.count[first:last].argmax())
            n, match = int(table.sizes[i]), int(table.match[i])
            found[int(table.clusters[i])] = (
                n,
                classes[int(table.classes[table.col[best]])],
                int(table.count[best]) / n,
                classes[int(table.classes[match])] if match >= 0 else None,
            )
    rows = []
    for i, (key, size) in enumerate(zip(ids.tolist(), sizes.tolist())):
        n, majority, purity, match = found.get(key, (0, None, None, None))
        sure = None if means is None else means[i]
        such = samples.get(key, [])
        rows.append(ClusterRow(key, named[key], size, n, majority, purity, match, sure, such))
    return rows


def _class_rows(
    table: metrics.Contingency, named: dict[int, str], classes: list[str]
) -> list[ClassRow]:
    hit = {int(table.col[i]): i for i in np.flatnonzero(table.hits)}
    rows = []
    for col, (code, n) in enumerate(zip(table.classes.tolist(), table.class_sizes.tolist())):
        if col in hit:
            row, right = int(table.row[hit[col]]), int(table.count[hit[col]])
            size = int(table.sizes[row])
            cluster = named[int(table.clusters[row])]
            rows.append(
                ClassRow(classes[code], n, cluster, right / n, right / size, 2 * right / (n + size))
            )
        else:
            rows.append(ClassRow(classes[code], n, None, 0.0, None, 0.0))
    return rows


def _warnings(counts: dict[str, int]) -> list[str]:
    """What the counts alone tell about how far scores can be trusted."""
    n, k, out = counts["pictures"], counts["clusters"], counts["outliers"]
    lines = []
    if k == 1:
        lines.append("there is one cluster: no score says anything about it")
    if k > 1 and k == n - out:
        lines.append("every picture is a cluster of its own: scores say nothing")
    if out:
        lines.append(f"{out:,} of {n:,} pictures are in no cluster and count as wrong in ACC")
    if "classes" in counts:
        c, labelled = counts["classes"], counts["labelled"]
        if k > c > 1:
            lines.append(
                f"{k:,} clusters for {c:,} classes: pictures of clusters that stand for no class"
                " count as wrong in ACC; look at AMI and purity too"
            )
        if 1 < k < c:
            lines.append(f"{k:,} clusters for {c:,} classes: some classes have to count as wrong")
        if labelled < FEW:
            lines.append(
                f"only {labelled:,} pictures have a label: scores are rough, intervals too narrow"
            )
    return lines


def _verdict(
    scores: dict[str, float | None],
    ends: dict[str, tuple[float, float]],
    others: dict[str, dict[str, float | None]],
    table: metrics.Contingency | None,
    classes: list[str],
    free: dict[str, float | None],
) -> list[str]:
    """The scores in words."""
    if table is None:
        return _shape(free)
    lines = [against(name, scores, other, ends) for name, other in others.items()]
    majority, acc = metrics.majority(table), scores["acc"]
    if majority is not None and acc is not None and acc <= majority and len(table.classes) > 1:
        largest = classes[int(table.classes[table.class_sizes.argmax()])]
        lines.append(
            f"ACC {acc:.3f} is no better than calling every picture {largest!r} ({majority:.3f})"
        )
    return lines


def against(
    name: str,
    ours: dict[str, float | None],
    theirs: dict[str, float | None],
    ends: dict[str, tuple[float, float]],
) -> str:
    """Compare with a baseline: ahead, behind or level in ACC, NMI and ARI.

    Level means that the baseline's score lies within our interval.
    """
    ahead, behind, level, shown = [], [], [], []
    for score in COMPARED:
        a, b = ours[score], theirs[score]
        if a is None or b is None:
            continue
        shown.append(f"{score.upper()} {a:.3f} against {round(b, 3) + 0.0:.3f}")
        low, high = ends.get(score, (a, a))
        place = level if low <= b <= high else ahead if a > b else behind
        place.append(score.upper())
    numbers = ", ".join(shown)
    if ahead and not behind:
        where = f" in {' and '.join(ahead)}, level in {' and '.join(level)}" if level else ""
        return f"beats {name}{where}: {numbers}"
    if behind and not ahead:
        return f"does not beat {name}: {numbers}"
    if ahead and behind:
        return (
            f"mixed against {name}, ahead in {' and '.join(ahead)},"
            f" behind in {' and '.join(behind)}: {numbers}"
        )
    return f"does not beat {name}, the two are level: {numbers}"


def _shape(free: dict[str, float | None]) -> list[str]:
    """The silhouette in words, by the scale of Kaufman & Rousseeuw 1990, table 4."""
    value = free.get("silhouette")
    if value is None:
        return ["nothing can be said without labels: there is no embedding, or no two clusters"]
    scale = ((0.7, "strong"), (0.5, "reasonable"), (0.25, "weak"), (-1.1, "no substantial"))
    word = next(word for least, word in scale if value > least)
    return [
        f"silhouette {value:.3f}: {word} structure; labels would tell whether it is the right one"
    ]
