"""Consensus: several k-means runs from different seeds vote on each image.

One run's clusters carry other numbers than another's, so each run is renamed to match the vote
so far as well as it can before it votes. A label that depends on the seed shows in the votes.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from deepclust.algorithms import Clusters, assemble, check_k, checked
from deepclust.algorithms.kmeans import fit
from deepclust.device import stream
from deepclust.progress import SILENT, Progress

RUNS = 16


def cluster(
    x: np.ndarray, k: int | None, *, seed: int, progress: Progress = SILENT, runs: int = RUNS
) -> Clusters:
    """Cluster the rows of x (N, d) float32 by the vote of `runs` k-means runs.

    Source: re-labelling and voting, Dudoit & Fridlyand 2003; the run of least inertia is the
    first to vote. Confidence is the share of votes that the winning cluster got.
    Raises UsageError, DataError and TrainingError as k-means does.
    """
    x = checked(x)
    k = check_k(k, "consensus", len(x))
    seeds = stream(seed, "consensus").integers(2**31, size=runs)
    labels, inertia = [], []
    with progress.stage("consensus", total=runs, unit="runs") as stage:
        for each in seeds:
            _, label, distance = fit(x, k, seed=int(each))
            labels.append(label)
            inertia.append(distance.sum(dtype=np.float64))
            stage.advance()
    label, share = vote([labels[i] for i in np.argsort(inertia, kind="stable")], k)
    progress.say(f"consensus: {runs} runs agree on {share.mean():.0%} of the votes")
    return assemble(x, label, share)


def vote(labels: list[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Match labellings to each other and count: the label of each row and its share of votes.

    labels: each (N,) int64 in 0..k-1, the first one leads. Returns (N,) int64, (N,) float32.
    """
    leader = labels[0]
    rows = np.arange(len(leader))
    votes = np.zeros((len(leader), k), np.float32)
    for _ in range(5):
        votes[:] = 0
        for label in labels:
            table = np.bincount(label * k + leader, minlength=k * k).reshape(k, k)
            votes[rows, linear_sum_assignment(table, maximize=True)[1][label]] += 1
        winner = votes.argmax(axis=1)
        if (winner == leader).all():
            break
        leader = winner
    return leader, votes[rows, leader] / len(labels)
