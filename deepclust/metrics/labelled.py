"""Scores against labels, each a function of the contingency table.

Two rules for noise hold throughout:
- ACC and purity: a noise picture is in no cluster, so it counts as wrong.
- NMI, AMI, ARI and the rest: noise is one group more, as scikit-learn has it. A group of its
  own for each noise picture would flatter: all noise would give NMI 0.76 on 3 classes of 2.
`covered` gives the table without noise. A score that nothing defines is None, never 1.

Z are the clusters and T the classes; logarithms are natural unless bits are named.
"""

from __future__ import annotations

from math import log, sqrt

import numpy as np

from deepclust.metrics.table import Contingency

CHUNK = 2_000_000  # numbers worked on at once


def scores(table: Contingency) -> dict[str, float | None]:
    """Every score of the table by its name; `SCORES` has what each means. Empty → all None."""
    return {
        "acc": acc(table),
        "nmi": nmi(table),
        "ami": ami(table),
        "ari": ari(table),
        "fmi": fmi(table),
        "purity": purity(table),
        "homogeneity": homogeneity(table),
        "completeness": completeness(table),
        "v_measure": nmi(table),
        "nmi_geometric": nmi_geometric(table),
        **mutual_information(table),
    }


SCORES = {
    "acc": "share of pictures whose cluster is matched to their class, one to one (Hungarian)",
    "nmi": "mutual information over the mean of both entropies; the papers' NMI",
    "ami": "NMI corrected for chance; 0 for a clustering drawn at random",
    "ari": "pairs of pictures put together or apart rightly, corrected for chance",
    "fmi": "geometric mean of the precision and recall of pairs (CC prints it as F)",
    "purity": "share of pictures that belong to their cluster's largest class",
    "homogeneity": "1 - H(T|Z)/H(T): do clusters hold one class each?",
    "completeness": "1 - H(Z|T)/H(Z): does each class lie in one cluster?",
    "v_measure": "harmonic mean of homogeneity and completeness; the same number as NMI",
    "nmi_geometric": "NMI over the geometric mean of both entropies",
    "information_bits": "I(Z;T), what the clusters Z tell about the classes T, in bits",
    "cluster_given_class_bits": "H(Z|T), bits by which clusters are finer than classes",
    "class_given_cluster_bits": "H(T|Z), bits about the class that the clusters leave open",
}


def acc(table: Contingency) -> float | None:
    """Clustering accuracy: pictures on the best one-to-one matching, over all pictures.

    Pictures of unmatched clusters, and noise, are wrong.
    """
    return _share(table.count[table.hits].sum(), table.n)


def purity(table: Contingency) -> float | None:
    """Pictures of their cluster's largest class, over all pictures; noise is wrong."""
    return _share(_largest(table)[: table.k].sum(), table.n)


def majority(table: Contingency) -> float | None:
    """What calling every picture by the largest class would score."""
    return _share(table.class_sizes.max(initial=0), table.n)


def _share(part: int, n: int) -> float | None:
    return float(part) / n if n else None


def _largest(table: Contingency) -> np.ndarray:
    """(len(clusters),) the largest cell of each row."""
    if not len(table.row):
        return np.empty(0, dtype=np.int64)
    return np.maximum.reduceat(table.count, np.searchsorted(table.row, range(len(table.clusters))))


def _entropies(table: Contingency) -> tuple[float, float, float]:
    """H(Z), H(T), H(Z,T) in nats."""
    n = max(table.n, 1)

    def entropy(counts: np.ndarray) -> float:
        p = counts / n
        return -float((p * np.log(p)).sum()) + 0.0

    return entropy(table.sizes), entropy(table.class_sizes), entropy(table.count)


def mutual_information(table: Contingency) -> dict[str, float | None]:
    """I(Z;T), H(Z|T) and H(T|Z) in bits, Z the clusters and T the classes.

    Source: the diagnostics of Cl-InfoNCE, Tsai et al. 2022. Plug-in estimates: many small
    clusters look better than they are, so read AMI beside them.
    """
    z, t, both = _entropies(table)
    nats = {
        "information_bits": z + t - both,
        "cluster_given_class_bits": both - t,
        "class_given_cluster_bits": both - z,
    }
    return {name: max(value / log(2), 0.0) if table.n else None for name, value in nats.items()}


def nmi(table: Contingency) -> float | None:
    """2 I(Z;T) / (H(Z) + H(T)); None where one cluster meets one class."""
    z, t, both = _entropies(table)
    return _ratio(2 * (z + t - both), z + t)


def nmi_geometric(table: Contingency) -> float | None:
    """I(Z;T) / √(H(Z) H(T)); 0 where only one of the two is a single group."""
    z, t, both = _entropies(table)
    return 0.0 if (z > 0) != (t > 0) else _ratio(z + t - both, sqrt(z * t))


def homogeneity(table: Contingency) -> float | None:
    """I(Z;T) / H(T): 1 if every cluster holds one class only."""
    z, t, both = _entropies(table)
    return None if not table.n else 1.0 if t == 0 else _ratio(z + t - both, t)


def completeness(table: Contingency) -> float | None:
    """I(Z;T) / H(Z): 1 if every class lies in one cluster."""
    z, t, both = _entropies(table)
    return None if not table.n else 1.0 if z == 0 else _ratio(z + t - both, z)


def _ratio(part: float, whole: float) -> float | None:
    return None if whole <= 0 else min(max(part / whole, 0.0), 1.0)


def _pairs(table: Contingency) -> tuple[int, int, int, int]:
    """Pairs of pictures: together in both, in the clusters, in the classes; all.

    Python integers from here on: products of these pass 2^63 from n = 100,000.
    """

    def pairs(counts: np.ndarray) -> int:
        return int((counts * (counts - 1) // 2).sum())

    n = table.n
    return pairs(table.count), pairs(table.sizes), pairs(table.class_sizes), n * (n - 1) // 2


def ari(table: Contingency) -> float | None:
    """Adjusted Rand index, Hubert & Arabie 1985; None where chance leaves nothing to gain."""
    both, z, t, every = _pairs(table)
    whole = (z + t) * every - 2 * z * t
    return 2 * (both * every - z * t) / whole if whole else None


def fmi(table: Contingency) -> float | None:
    """Fowlkes-Mallows 1983: √(precision · recall) of the pairs put together."""
    both, z, t, every = _pairs(table)
    if not every:
        return None
    return both / sqrt(z) / sqrt(t) if both else 0.0


def ami(table: Contingency) -> float | None:
    """(I - E[I]) / (mean of H(Z) and H(T) - E[I]); None where that is 0 over 0.

    Source: Vinh, Epps & Bailey 2010, JMLR 11, eq. 24; E[I] over all clusterings of these sizes.
    """
    z, t, both = _entropies(table)
    if table.n < 2 or (z == 0 and t == 0):
        return None
    if z == 0 or t == 0:
        return 0.0
    expected = _expected_information(table.sizes, table.class_sizes, table.n)
    whole = (z + t) / 2 - expected
    if abs(whole) < 1e-12:
        return None
    return min((z + t - both - expected) / whole, 1.0)


def _expected_information(sizes: np.ndarray, class_sizes: np.ndarray, n: int) -> float:
    """E[I] in nats when cells are hypergeometric.

    Equal sizes are worked out once. For each pair of sizes only the cells within reach of their
    mean are summed (Bernstein's bound leaves out less than 1e-16), and the weights are
    normalised, which takes the rounding of the large factorials out.
    """
    from scipy.special import gammaln

    factorial = gammaln(np.arange(n + 1) + 1.0)
    a, a_times = np.unique(sizes, return_counts=True)
    b, b_times = np.unique(class_sizes, return_counts=True)
    a, b = (grid.reshape(-1) for grid in np.meshgrid(a, b, indexing="ij"))
    times = np.outer(a_times, b_times).reshape(-1)
    mean = a * (b / n)
    reach = 13 + np.sqrt(169 + 78 * mean)
    low = np.maximum(np.maximum(a + b - n, 0), np.floor(mean - reach)).astype(np.int64)
    high = np.minimum(np.minimum(a, b), np.ceil(mean + reach)).astype(np.int64)
    width = high - low + 1
    total = 0.0
    ends = np.cumsum(width)
    for part in np.split(np.arange(len(a)), np.searchsorted(ends, range(CHUNK, ends[-1], CHUNK))):
        if not len(part):
            continue
        w = width[part]
        start = np.cumsum(w) - w
        x = np.arange(w.sum()) - np.repeat(start - low[part], w)
        aa, bb = np.repeat(a[part], w), np.repeat(b[part], w)
        weight = -(factorial[x] + factorial[aa - x] + factorial[bb - x])
        weight -= factorial[n - aa - bb + x]
        weight -= np.repeat(np.maximum.reduceat(weight, start), w)
        np.exp(weight, out=weight)
        term = weight * x * np.log(np.maximum(x, 1) * (n / aa) / bb)
        mass = np.add.reduceat(weight, start)
        total += float((times[part] * np.add.reduceat(term, start) / mass).sum())
    return total / n


def intervals(
    table: Contingency, rounds: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of ACC, NMI and ARI: what another draw of pictures might give.

    Pictures are drawn again `rounds` times (fewer where the table has many cells, at least
    100). ACC keeps the matching of the whole set. Drawing with repeats lifts NMI, so the spread
    is laid around the score itself.
    Returns {} for an empty table or rounds = 0; a score that is None has no interval.
    """
    n, m = table.n, len(table.count)
    if not n or rounds <= 0:
        return {}
    rounds = min(rounds, max(100, 5 * CHUNK // m))
    rng = np.random.default_rng(seed)
    by_col = np.argsort(table.col, kind="stable")
    row_starts = np.searchsorted(table.row, range(len(table.clusters)))
    col_starts = np.searchsorted(table.col[by_col], range(len(table.classes)))
    times = np.arange(n + 1, dtype=np.float64)
    xlogx = times * np.log(np.maximum(times, 1))
    drawn: dict[str, list[np.ndarray]] = {"acc": [], "nmi": [], "ari": []}
    step = max(1, CHUNK // m)
    for done in range(0, rounds, step):
        cells = rng.multinomial(n, table.count / n, size=min(step, rounds - done))
        sizes = np.add.reduceat(cells, row_starts, axis=1)
        class_sizes = np.add.reduceat(cells[:, by_col], col_starts, axis=1)
        drawn["acc"].append(cells[:, table.hits].sum(axis=1) / n)
        z, t, both = (log(n) - xlogx[part].sum(axis=1) / n for part in (sizes, class_sizes, cells))
        pairs = [(part * (part - 1.0)).sum(axis=1) / 2 for part in (cells, sizes, class_sizes)]
        chance = pairs[1] * pairs[2] / max(n * (n - 1) / 2, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn["nmi"].append(2 * (z + t - both) / (z + t))
            drawn["ari"].append((pairs[0] - chance) / ((pairs[1] + pairs[2]) / 2 - chance))
    found = {"acc": (acc(table), 0.0), "nmi": (nmi(table), 0.0), "ari": (ari(table), -1.0)}
    result = {}
    for name, (score, least) in found.items():
        values = np.concatenate(drawn[name])
        values = values[np.isfinite(values)]
        if score is not None and len(values):
            ends = score + np.percentile(values, [2.5, 97.5]) - values.mean()
            result[name] = (max(float(ends[0]), least), min(float(ends[1]), 1.0))
    return result
