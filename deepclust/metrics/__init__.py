"""Scores of a clustering, with labels and without.

`contingency` counts, `scores` and `intervals` read everything off that one table, `label_free`
needs the embedding alone.
"""

from __future__ import annotations

from deepclust.metrics.labelled import (
    SCORES,
    acc,
    ami,
    ari,
    completeness,
    fmi,
    homogeneity,
    intervals,
    majority,
    mutual_information,
    nmi,
    nmi_geometric,
    purity,
    scores,
)
from deepclust.metrics.table import Contingency, contingency, covered
from deepclust.metrics.unlabelled import label_free

__all__ = [
    "SCORES",
    "Contingency",
    "acc",
    "ami",
    "ari",
    "completeness",
    "contingency",
    "covered",
    "fmi",
    "homogeneity",
    "intervals",
    "label_free",
    "majority",
    "mutual_information",
    "nmi",
    "nmi_geometric",
    "purity",
    "scores",
]
