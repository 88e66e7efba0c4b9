"""Objectives as pure functions of embeddings, and the numbers to read them by.

Nothing here keeps state, names a device or is told the batch size in advance: queues,
prototypes and momentum encoders belong to the method that uses them. Half precision is widened
to float32 at the door; float64 stays float64. Call outside of autocast.

One core, `multi_positive_nce`, serves NT-Xent, CC's cluster contrast and SupCon: they differ only
in what the rows are and which of them are positives.

Letters used throughout: n images in a batch, d embedding width, k clusters, τ temperature.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def multi_positive_nce(z: Tensor, positives: Tensor, temperature: float) -> Tensor:
    """Contrast each row with all others; each has to find its positives.

    With s_ij = z_i·z_j / τ and P_i the positives of row i,

        loss = 1/m Σ_i 1/|P_i| Σ_{p∈P_i} ( log Σ_{j≠i} exp(s_ij) − s_ip )

    Source: SupCon's L_out, Khosla et al. 2020, arXiv:2004.11362, eq. 2, as in its published code:
    a row without positives adds 0 and counts in the mean.

    z: (m, d) float, taken as it is; unit rows make s a cosine.
    positives: (m, m) bool; the diagonal is ignored.
    temperature: τ > 0.
    Returns a scalar in nats.
    """
    z = _wide(z)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
    surprise = logits.logsumexp(dim=1, keepdim=True) - logits
    positives = positives & ~itself
    count = positives.sum(dim=1).clamp_min(1)
    return (surprise.masked_fill(~positives, 0).sum(dim=1) / count).mean()


def nt_xent(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """Contrast two views of a batch: each row has to find its own other view.

    With z the 2n normalised rows of [a; b] and j(i) the row of the same image as i,

        loss = −1/2n Σ_i log( exp(z_i·z_j(i) / τ) / Σ_{m≠i} exp(z_i·z_m / τ) )

    Source: SimCLR, Chen et al. 2020, arXiv:2002.05709, eq. 1, averaged over both views; CC's
    instance loss, Li et al. 2021, arXiv:2009.09687, is the same number.
    Differs: SimCLR's published code returns the sum of the two directions, twice this value.

    a, b: (n, d) float, n ≥ 2; any scale, rows are normalised here.
    temperature: τ > 0.
    Returns a scalar in nats.
    """
    z = F.normalize(_wide(torch.cat([a, b])), dim=1)
    image = torch.arange(len(a), device=a.device).repeat(2)
    return multi_positive_nce(z, _same(image), temperature)


def cluster_contrast(pa: Tensor, pb: Tensor, temperature: float) -> Tensor:
    """Contrast the clusters of two views: NT-Xent on the columns of the soft assignments.

    A cluster is the vector of its n assignments; it has to find itself in the other view.

    Source: CC, arXiv:2009.09687, eq. 4–6, as in the published code: cosine similarity with an
    epsilon of 1e-8, and no comparison of a cluster with itself (the paper's sum includes it).

    pa, pb: (n, k) float, rows sum to 1. An empty column has similarity 0 to all.
    temperature: τ > 0.
    Returns a scalar in nats, between the two `cluster_bounds` for useful assignments.
    """
    columns = F.normalize(_wide(torch.cat([pa, pb], dim=1)).T, dim=1, eps=1e-8)
    cluster = torch.arange(pa.shape[1], device=pa.device).repeat(2)
    return multi_positive_nce(columns, _same(cluster), temperature)


def balance(p: Tensor) -> Tensor:
    """How far the clusters are from equal size: log k − H(mean assignment).

    Source: the entropy term of CC, arXiv:2009.09687, eq. 7, as in the published code, which adds
    the constant log k and divides by the plain sum of the entries.
    Differs: an empty cluster adds 0 with a finite gradient, where the published code gives NaN.

    p: (n, k) float ≥ 0, soft assignments.
    Returns a scalar in nats in [0, log k]; 0 for equal clusters.
    """
    mean = _wide(p).sum(dim=0)
    mean = mean / mean.sum()
    guarded = mean.clamp_min(torch.finfo(mean.dtype).tiny)
    return math.log(len(mean)) + (mean * guarded.log()).sum()


def supcon(
    z: Tensor, label: Tensor | None, temperature: float, base: float | None = None
) -> Tensor:
    """Contrast images by label: every view of every image of the same label is a positive.

    Source: SupCon, arXiv:2004.11362, eq. 2. Without labels it is NT-Xent.
    Differs: the published code multiplies by τ / 0.07; here the factor is 1 unless `base` is given.

    z: (n, v, d) float, v views an image; any scale, rows are normalised here.
    label: (n,) int64, or None for each image its own label.
    temperature: τ > 0. base: the loss is multiplied by τ / base.
    Returns a scalar in nats.
    """
    n, views, _ = z.shape
    image = torch.arange(n, device=z.device) if label is None else label
    rows = F.normalize(_wide(z).flatten(0, 1), dim=1)
    loss = multi_positive_nce(rows, _same(image.repeat_interleave(views)), temperature)
    return loss if base is None else loss * (temperature / base)


def info_nce(
    q: Tensor, k: Tensor, queue: Tensor, temperature: float, *, mates: bool = False
) -> Tensor:
    """Each query has to find its own key among the keys of a queue.

        loss = −1/n Σ_i log( exp(q_i·k_i / τ) / ( exp(q_i·k_i / τ) + Σ_j exp(q_i·u_j / τ) ) )

    Source: MoCo, He et al. 2020, arXiv:1911.05722, eq. 1; with `mates` the keys of the other
    images of the batch stand in the sum too, as in MoCo v3, Chen et al. 2021, arXiv:2104.02057.

    q, k: (n, d) float; any scale, rows are normalised here. queue: (r, d) float, unit rows u.
    temperature: τ > 0.
    Returns a scalar in nats; if all embeddings are equal, log(1 + r), with mates log(n + r).
    """
    q, k = F.normalize(_wide(q), dim=1), F.normalize(_wide(k), dim=1)
    if mates:
        own, target = q @ k.T, torch.arange(len(q), device=q.device)
    else:
        own = (q * k).sum(dim=1, keepdim=True)
        target = torch.zeros(len(q), dtype=torch.long, device=q.device)
    logits = torch.cat([own, q @ queue.to(q.dtype).T], dim=1) / temperature
    return F.cross_entropy(logits, target)


def concentration(
    distance: Tensor, label: Tensor, k: int, temperature: float, alpha: float = 10
) -> Tensor:
    """Give each cluster its own temperature φ: small where its images lie close.

    φ_c = mean distance / log(size + α); clusters of 0 or 1 image take the largest; all are clipped
    to their 10th and 90th percentile (linear interpolation) and scaled to a mean of τ.

    Source: PCL, Li et al. 2021, arXiv:2005.04966, section 3.3. The rule for small clusters and the
    clipping stand in the published code only.
    Differs: φ never falls below τ/10, and is τ throughout where no cluster has any spread. In a
    folder with many copies of a picture the published φ is 0 and the loss infinite.

    distance: (N,) float, L2 distance (not squared) of each image to its centre as k-means left it,
        not normalised. label: (N,) int64 in 0..k−1.
    Returns (k,) float, in float32 or wider.
    """
    distance = _wide(distance)
    size = torch.bincount(label, minlength=k)
    total = torch.zeros(k, dtype=distance.dtype, device=distance.device)
    total = total.index_add(0, label, distance)
    phi = total / size.clamp_min(1) / torch.log(size + alpha)
    phi = torch.where(size > 1, phi, torch.where(size > 1, phi, 0).max())
    low, high = phi.quantile(0.1), phi.quantile(0.9)
    phi = phi.clamp(low, high)
    mean = phi.mean()
    if mean == 0:
        return torch.full_like(phi, temperature)
    return (temperature * phi / mean).clamp_min(temperature / 10)


def absent(label: Tensor, k: int) -> Tensor:
    """Return which of the clusters 0..k−1 do not occur in label (n,), ascending, as int64."""
    free = torch.ones(k, dtype=torch.bool, device=label.device)
    free[label] = False
    return free.nonzero()[:, 0]


def proto_nce(
    q: Tensor,
    prototypes: Tensor,
    label: Tensor,
    phi: Tensor,
    negatives: Tensor | None = None,
    *,
    repeated: bool = False,
) -> Tensor:
    """Each query has to find the prototype of its cluster among the others.

        loss = −1/n Σ_i log( exp(q_i·c_s(i) / φ_s(i)) / Σ_{j∈D} exp(q_i·c_j / φ_j) )

    D: each cluster that occurs in the batch, once, and the negatives.

    Source: PCL, arXiv:2005.04966, eq. 11, one clustering.
    Differs: the published code has one prototype row per image in D, so that an image meets its
    own prototype again, as a negative, through each batch mate of its cluster. With the few
    clusters of a folder that rules the loss. `repeated` gives the published form.

    q: (n, d) float; any scale, rows are normalised here.
    prototypes: (k, d) float, unit rows c. label: (n,) int64, s. phi: (k,) float > 0.
    negatives: (r,) int64, clusters that do not occur in label; None for all of them.
    Returns a scalar in nats.
    """
    q = F.normalize(_wide(q), dim=1)
    if repeated:
        own, target = label, torch.arange(len(q), device=q.device)
    else:
        own, target = label.unique(return_inverse=True)
    others = absent(label, len(prototypes)) if negatives is None else negatives
    columns = torch.cat([own, others])
    logits = q @ prototypes[columns].to(q.dtype).T / phi[columns].to(q.dtype)
    return F.cross_entropy(logits, target)


def align(x: Tensor, y: Tensor, alpha: float = 2) -> Tensor:
    """Mean distance between the two views of an image: mean ‖x_i − y_i‖^α.

    Source: Wang and Isola 2020, arXiv:2005.10242, eq. 5.

    x, y: (n, d) float; any scale, rows are normalised here.
    Returns a scalar; for α = 2 in [0, 4], 0 where the views agree.
    """
    x, y = F.normalize(_wide(x), dim=1), F.normalize(_wide(y), dim=1)
    return (x - y).norm(dim=1).pow(alpha).mean()


def uniform(x: Tensor, t: float = 2) -> Tensor:
    """How evenly the images spread over the sphere: log mean_{i<j} exp(−t ‖x_i − x_j‖²).

    Source: Wang and Isola 2020, arXiv:2005.10242, eq. 6.

    x: (n, d) float, n ≥ 2; any scale, rows are normalised here. Memory grows with n².
    Returns a scalar in [−2 t n / (n − 1), 0]; 0 if all rows are equal, which is collapse.
    """
    return F.pdist(F.normalize(_wide(x), dim=1)).pow(2).mul(-t).exp().mean().log()


def scan(a: Tensor, b: Tensor) -> Tensor:
    """Ask an image and its neighbour for the same cluster: −1/n Σ_i log Σ_c p_c(a_i) p_c(b_i).

    Source: SCAN, Van Gansbeke et al. 2020, arXiv:2005.12320, eq. 2, first term.
    Differs: its second term is λ · `balance(a.softmax(1))`, which is the paper's −λ H plus the
    constant λ log k.

    a, b: (n, k) float, logits of n images and of a neighbour of each.
    Returns a scalar in nats.
    """
    agreement = _wide(a).log_softmax(dim=1) + _wide(b).log_softmax(dim=1)
    return -agreement.logsumexp(dim=1).mean()


def self_label(weak: Tensor, strong: Tensor, threshold: float, *, balanced: bool = True) -> Tensor:
    """Teach the strong view the label of the weak one, where that is sure.

    Cross-entropy over the images whose largest weak probability is above the threshold; balanced,
    class c has weight (sure images / sure images of c), and the mean is weighted.

    Source: SCAN, arXiv:2005.12320, section 2.3, weights as in the published code.
    Differs: 0 where no image is sure; the published code stops with an error.

    weak, strong: (n, k) float logits; no gradient flows into weak.
    Returns a scalar in nats.
    """
    sure, label = _wide(weak).detach().softmax(dim=1).max(dim=1)
    chosen = (sure > threshold).to(sure.dtype)
    size = torch.zeros(weak.shape[1], dtype=sure.dtype, device=weak.device)
    size = size.index_add(0, label, chosen)
    weight = chosen / size[label].clamp_min(1) if balanced else chosen
    nats = F.cross_entropy(_wide(strong), label, reduction="none")
    return (weight * nats).sum() / weight.sum().clamp_min(torch.finfo(sure.dtype).tiny)


def temi(
    student: Tensor,
    teacher: Tensor,
    marginal: Tensor,
    *,
    beta: float = 0.6,
    temperature: float = 0.1,
) -> Tensor:
    """Self-distillation between an image and a neighbour, for several heads at once.

    With s, t the student's and teacher's probabilities, (x, x') a pair and m the mean of t,

        loss_h = 1/n Σ w(x, x') ½ Σ_{both orders} −log Σ_c (s_c(x) t_c(x'))^β / m_c

    where w is the mean over heads of Σ_c t_c(x) t_c(x'). β < 1 keeps clusters from vanishing.

    Source: TEMI, Adaloglou et al. 2023, arXiv:2303.17896, eq. 7 and 9.

    student, teacher: (h, 2n, k) float logits, n images and then a neighbour of each; no gradient
        flows into the teacher. marginal: (h, k) float, running mean of the teacher's
        probabilities with this batch already in it.
    Returns (h,), nats per head.
    """
    s = (_wide(student) / temperature).log_softmax(dim=2)
    t = (_wide(teacher).detach() / temperature).log_softmax(dim=2)
    first, second = t.chunk(2, dim=1)
    weight = (first + second).exp().sum(dim=2).mean(dim=0)
    swapped = torch.cat([second, first], dim=1)
    nats = -(beta * (s + swapped) - _wide(marginal).log()[:, None]).logsumexp(dim=2)
    return (weight.repeat(2) * nats).mean(dim=1)


def nt_xent_ceiling(n: int) -> float:
    """NT-Xent of n images whose embeddings are all equal, total collapse: log(2n − 1) nats.

    The ceiling minus the loss is also a lower bound on the information the views share (CPC).
    """
    return math.log(2 * n - 1)


def cluster_bounds(k: int, temperature: float = 1.0) -> tuple[float, float]:
    """Cluster contrast of balanced one-hot assignments and of uniform ones, in nats.

    One-hot: cosine 1 to itself and 0 to the 2k − 2 others, log(1 + (2k − 2) e^(−1/τ)).
    Uniform: all cosines 1, log(2k − 1) for any τ.
    """
    return math.log1p((2 * k - 2) * math.exp(-1 / temperature)), math.log(2 * k - 1)


def effective_rank(x: Tensor) -> float:
    """How many directions the rows use: exp of the entropy of the normalised singular values.

    Source: Roy and Vetterli 2007; as a collapse read-out, RankMe, Garrido et al. 2023,
    arXiv:2210.02885, eq. 2. Not centred: equal rows give 1.

    x: (n, d) float, not all zero. Returns a number in [1, min(n, d)].
    """
    gram = x.double().T @ x.double()
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    share = values / values.sum()
    return torch.special.entr(share).sum().exp().item()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _same(label: Tensor) -> Tensor:
    return label[:, None] == label
