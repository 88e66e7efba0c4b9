"""Print how fast deepclust is, against the field's own code on this machine.

    python benchmarks/run.py                  # all rows, about half an hour of one core
    python benchmarks/run.py --rows 4 6 7

A and B take turns in one process, on one thread, in CPU seconds; the ratio is the median of five
turns, with the lowest and the highest. Where the published code is (see `peers.py`) is told by
PUBLISHED_CC and PUBLISHED_PCL; without them a plain re-statement of it takes its place. Pictures
are drawn, weights are random. "Of peak" is the share of the quickest matrix product, in bfloat16
where the processor has units for it and in float32 elsewhere.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import kmeans
import numpy as np
import ours
import peers
import torch
from measure import HEADER, Row, alternate, child, peak
from pictures import draw
from torch.utils.flop_counter import FlopCounterMode

from deepclust.config import Train
from deepclust.methods.base import Facts

ADAM = Train(optimizer="adam", lr=3e-4)
SGD = Train(optimizer="sgd", lr=0.03, weight_decay=1e-4)
HELP = [sys.executable, "-m", "deepclust", "--help"]


def flops(name: str, side: int, backward: bool) -> float:
    """Return the operations of one picture through a network of torchvision or timm."""
    net = eager(name)
    counter = FlopCounterMode(display=False)
    with counter:
        features = net(torch.zeros(2, 3, side, side))
        if backward:
            features.sum().backward()
    return counter.get_total_flops() / 2


def eager(name: str) -> torch.nn.Module:
    import torchvision

    if hasattr(torchvision.models, name):
        net = getattr(torchvision.models, name)()
        net.fc = torch.nn.Identity()
        return net
    import timm

    return timm.create_model(name, pretrained=False, num_classes=0)


# --- rows ---------------------------------------------------------------------------------------


def cc(number: str, name: str, side: int, batch: int, least: float, folder: Path) -> Row:
    large = side > 96
    facts = Facts(1_000, 10, 0)
    theirs = peers.cc_step(folder, name, side, batch, 10, 1.0 if large else 0.5, large)
    preset = "cc-strong" if large else "cc"
    mine = ours.step("cc", folder, name, side, batch, preset, facts, ADAM)
    ratios, seconds = alternate(theirs, mine)
    work = f"CC step from files, {name} @{side}, batch {batch}"
    per = 2 * batch * flops(name, side, True)
    return Row(number, work, f"{peers.which('PUBLISHED_CC')} CC", least, ratios, seconds, flops=per)


def row1(home: Path) -> Iterator[Row]:
    folder = draw(home / "photos", 64, 500, 375)
    yield cc("1", "resnet34", 224, 24, 4.5, folder)
    yield cc("1", "resnet18", 224, 32, 4.5, folder)


def row2(home: Path) -> Iterator[Row]:
    yield cc("2", "resnet18", 96, 64, 4.0, draw(home / "middle", 128, 96, 96))
    yield cc("2", "resnet18", 32, 128, 4.0, draw(home / "small", 256, 32, 32, "PNG"))


def row3(home: Path) -> Iterator[Row]:
    folder, sizes, queue = draw(home / "photos", 64, 500, 375), [25_000, 50_000, 100_000], 16_384
    theirs = peers.pcl_step(folder, "resnet18", 224, 32, sizes, queue)
    options = {"clusters": sizes, "queue": queue, "negatives": queue}
    mine = ours.step(
        "pcl", folder, "resnet18", 224, 32, "pcl", Facts(200_000, None, 0), SGD, options
    )
    ratios, seconds = alternate(theirs, mine)
    # A key goes forward only, which is a third of forward and backward.
    per = 32 * (flops("resnet18", 224, True) + flops("resnet18", 224, False))
    yield Row(
        "3", "PCL step with 175,000 prototypes, resnet18 @224, batch 32",
        f"{peers.which('PUBLISHED_PCL')} PCL", 4.0, ratios, seconds, flops=per,
    )  # fmt: skip


def row4(home: Path) -> Iterator[Row]:
    for side, least, batch, size, kind in (
        (224, 15, 32, (500, 375), "JPEG"), (96, 30, 64, (96, 96), "JPEG"),
        (32, 30, 256, (32, 32), "PNG"),
    ):  # fmt: skip
        folder = draw(home / f"views{side}", max(64, batch), *size, kind)
        views = peers.cc_views(side, 1.0 if side > 96 else 0.5, side > 96)
        theirs = peers.endless(peers.loader(folder, views, batch))
        preset = "cc-strong" if side > 96 else "cc"
        mine = ours.endless(ours.pixels(folder, preset, side), batch)
        ratios, seconds = alternate(lambda: next(theirs), lambda: next(mine), turns=7)  # noqa: B023
        yield Row(
            "4", f"two views and collate @{side}, batch {batch}",
            f"{peers.which('PUBLISHED_CC')} transforms, from files", least, ratios, seconds,
        )  # fmt: skip


def row5(home: Path) -> Iterator[Row]:
    for name, peer, batch, least in (
        ("resnet18", "resnet18", 32, 6.0), ("resnet50", "resnet50", 16, 5.0),
        ("vit_small_patch16_224", "vit_small_patch16_224", 16, 4.0),
        ("lite0", "tf_efficientnet_lite0", 32, 1.0),
    ):  # fmt: skip
        net, embed = eager(peer).eval(), ours.embedder(name, 224)
        images = torch.rand(batch, 3, 224, 224)

        def theirs() -> None:
            with torch.no_grad():
                net(images)  # noqa: B023

        ratios, seconds = alternate(theirs, lambda: embed(images), turns=7)  # noqa: B023
        yield Row(
            "5", f"embedding, {name} @224, batch {batch}", "torch, eager float32", least, ratios,
            seconds, flops=batch * flops(peer, 224, False),
            note="as high as it goes" if name == "lite0" else "",
        )  # fmt: skip


def row6(home: Path) -> Iterator[Row]:
    for d in (128, 512):
        seconds, inertia = kmeans.compare(100_000, d, 1_000, turns=5)
        for name, least in (("faiss", 4.0), ("scikit-learn", 3.0)):
            ratios = [a / b for a, b in zip(seconds[name], seconds["deepclust"], strict=True)]
            off = inertia["deepclust"] / inertia[name] - 1
            both = median(seconds[name]), median(seconds["deepclust"])
            yield Row(
                "6", f"k-means, n 100,000, d {d}, k 1,000, same start", name, least, ratios, both,
                note=f"inertia {off:+.2%}",
            )  # fmt: skip


def row7(home: Path) -> Iterator[Row]:
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    from deepclust import metrics

    label, cluster = ours.labels(1_000_000, 1_000)

    def theirs() -> None:
        cost = np.zeros((1_000, 1_000), np.int64)
        for a, b in zip(cluster, label, strict=True):
            cost[a, b] += 1
        linear_sum_assignment(cost, maximize=True)
        normalized_mutual_info_score(label, cluster)
        adjusted_rand_score(label, cluster)

    def mine() -> None:
        table = metrics.contingency(cluster, label)
        metrics.acc(table), metrics.nmi(table), metrics.ari(table)

    ratios, seconds = alternate(theirs, mine)
    yield Row(
        "7", "ACC, NMI and ARI, n 1,000,000, k 1,000", "scikit-learn and the usual loop", 25,
        ratios, seconds,
    )  # fmt: skip


def row8(home: Path) -> Iterator[Row]:
    spent = median(child(HELP)[0] for _ in range(9))
    bare = median(child([sys.executable, "-c", "pass"])[0] for _ in range(9))
    heavy = "[m for m in ('torch', 'numpy', 'rich') if m in sys.modules]"
    test = f"import deepclust.cli, sys; print({heavy})"
    loaded = child([sys.executable, "-c", test])[2].strip()
    yield Row(
        "8", "deepclust --help", "–", 100, value=1_000 * spent, unit="ms",
        note=f"python -c pass: {1_000 * bare:.0f} ms; heavy modules imported: {loaded}",
    )  # fmt: skip


SCAN = """
import resource, time
from deepclust.data.images import find_images
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
found = find_images({folder!r})
spent = time.process_time() - began
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(len(found.files), spent, grown / 1024)
"""


def row9(home: Path) -> Iterator[Row]:
    for number in range(100):
        folder = home / "many" / f"{number:03d}"
        folder.mkdir(parents=True)
        for i in range(1_000):
            (folder / f"{i:04d}.jpg").write_bytes(b"\xff\xd8\xff")
    script = SCAN.format(folder=str(home / "many"))
    runs = [child([sys.executable, "-c", script])[2].split() for _ in range(5)]
    files = int(runs[0][0])
    for at, least, unit in ((1, 0.5, "s"), (2, 40, "MB")):
        value = median(float(run[at]) for run in runs)
        yield Row("9", f"scan and stat of {files:,} files", "–", least, value=value, unit=unit)


NAIVE = """
import csv, sys
import timm, torch
from pathlib import Path
from PIL import Image
from sklearn.cluster import KMeans
torch.set_num_threads(2)
net = timm.create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0).eval()
change = timm.data.create_transform(**timm.data.resolve_model_data_config(net))
paths = sorted(Path(sys.argv[1]).rglob("*.jpg"))
features = []
with torch.no_grad():
    for at in range(0, len(paths), 32):
        batch = [change(Image.open(path).convert("RGB")) for path in paths[at : at + 32]]
        features.append(net(torch.stack(batch)))
label = KMeans(10, n_init=10).fit_predict(torch.cat(features).numpy())
with open(sys.argv[2], "w") as file:
    csv.writer(file).writerows(zip(paths, label))
"""


def row10(home: Path) -> Iterator[Row]:
    folder = draw(home / "thousand", 1_000, 500, 375)
    free = {**os.environ, "OMP_NUM_THREADS": "2"}
    for words, how in (((), "5 passes a picture"), (("--fast",), "--fast, 1 pass")):
        spent: tuple[list[float], list[float], list[float]] = ([], [], [])
        for turn in range(5 if words else 3):
            place = home / f"turn{turn}{how[:3]}"
            place.mkdir()
            free["DEEPCLUST_CACHE_DIR"] = str(place / "cache")
            naive = [sys.executable, "-c", NAIVE, str(folder), str(place / "naive.csv")]
            command = [sys.executable, "-m", "deepclust", "-q", "cluster", str(folder), "--k", "10"]
            spent[0].append(child(naive, env=free, cwd=place)[0])
            cpu, wall, _ = child([*command, *words, "--threads", "2"], env=free, cwd=place)
            spent[1].append(cpu)
            spent[2].append(wall)
        ratios = [a / b for a, b in zip(spent[0], spent[1], strict=True)]
        yield Row(
            "10", f"first clusters of 1,000 photographs, {how}",
            "timm + scikit-learn, eager, 1 pass",
            4.0, ratios, (median(spent[0]), median(spent[1])),
            note=f"{median(spent[2]):.0f} s wall",
        )  # fmt: skip


MEMORY = """
import resource, sys
sys.path.insert(0, {here!r})
from pathlib import Path
import torch, ours
torch.set_num_threads(1)
facts, train = ours.Facts(64, 10, 0), ours.Train(optimizer="adam", lr=3e-4)
take = ours.step("cc", Path({folder!r}), "resnet18", 224, 32, "cc", facts, train)
for _ in range(4):
    take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def row11(home: Path) -> Iterator[Row]:
    folder = draw(home / "photos", 64, 500, 375)
    script = MEMORY.format(here=str(Path(__file__).parent), folder=str(folder))
    value = float(child([sys.executable, "-c", script])[2])
    yield Row("11", "peak memory, CC resnet18 @224, batch 32", "–", 1.5, value=value, unit="GB")


ROWS: dict[int, Callable[[Path], Iterator[Row]]] = {
    1: row1, 2: row2, 3: row3, 4: row4, 5: row5, 6: row6, 7: row7, 8: row8, 9: row9, 10: row10,
    11: row11,
}  # fmt: skip


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "?")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), choices=list(ROWS))
    chosen = parser.parse_args().rows
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    warnings.simplefilter("ignore")
    half, single = peak(torch.bfloat16), peak(torch.float32)
    print(
        f"{time.strftime('%Y-%m-%d')}, {processor()}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, OpenCV {cv2.__version__}, numpy {np.__version__}\n\nLargest matrix "
        f"product, one thread: {half / 1e9:,.0f} GFLOP/s in bfloat16, {single / 1e9:,.0f} in "
        "float32.\n"
    )
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ["DEEPCLUST_CACHE_DIR"] = str(Path(home) / "cache")
        for number in chosen:
            for row in ROWS[number](Path(home)):
                print(f"| {' | '.join(row.cells(max(half, single)))} |", flush=True)


if __name__ == "__main__":
    main()
