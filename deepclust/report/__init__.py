"""The report on a clustering: `make` it from arrays, `write` it, or show its rows."""

from __future__ import annotations

from deepclust.report.result import RULES, ClassRow, ClusterRow, Report, make
from deepclust.report.tables import cluster_rows, score_rows, write

__all__ = [
    "RULES",
    "ClassRow",
    "ClusterRow",
    "Report",
    "cluster_rows",
    "make",
    "score_rows",
    "write",
]
