"""What people and strangers give to the command line, with the exit code and the words they get.

`test_rows.py` holds every row to it; `python -m tests.rows` prints the table of
docs/reliability.md.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests import hostile
from tests.faults import draw

TINY = "--epochs 1 --batch-size 4 --threads 1 --workers 0"
QUICK = f"--method cc --encoder resnet8 --image-size 32 {TINY}"

AGAIN = f"pretrain good --out run --k 2 {QUICK} --resume"


@dataclass(frozen=True)
class Row:
    """A command in a folder made by `world`, its exit code, and words of standard error."""

    what: str
    command: str
    code: int
    says: str = ""


def world(root: Path) -> None:
    """Make the folders that the rows speak of."""
    draw(root / "good", 8)
    draw(root / "one", 1)
    (root / "empty").mkdir()
    (root / "texts").mkdir()
    for name in ("a.txt", "b.csv"):
        (root / "texts" / name).write_text("x")
    (root / "broken").mkdir()
    for name in ("a.png", "b.jpg"):
        (root / "broken" / name).write_bytes(b"no picture")
    mixed = draw(root / "mixed", 5)
    jpeg = hostile.encode(hostile.scene(), "JPEG")
    (mixed / "cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (mixed / "empty.jpg").write_bytes(b"")
    (mixed / "text.png").write_text("text")
    (root / "same").mkdir()
    for i in range(6):
        (root / "same" / f"{i}.png").write_bytes(hostile.encode(hostile.scene(16, 16), "PNG"))
    (root / "file").write_bytes(b"PK\3\4")
    (root / "full").mkdir()
    (root / "full" / "mine.txt").write_text("mine")
    (root / "torn").mkdir()
    (root / "torn" / "run.json").write_text('{"format": "deepclust-run"')
    (root / "foreign").mkdir()
    (root / "foreign" / "run.json").write_text("[]")
    (root / "evil.pt").write_bytes(b"\x80\x04cos\nmkdir\nX\x05\0\0\0PWNED\x85R.")
    (root / "text.toml").write_text("= =")


def train(what: str, words: str, code: int, says: str, images: str = "good") -> Row:
    return Row(what, f"pretrain {images} --out new {words}", code, says)


# Those that are refused before any work; none of them makes the folder `new`.
REFUSED = [
    Row("1 no such folder", "pretrain nowhere", 2, "nowhere does not exist"),
    Row("1 no folder named", "pretrain", 2, "name a folder of images"),
    Row("2 a file for a folder", "pretrain file", 3, "file is not a folder"),
    Row("3 empty folder", "pretrain empty", 3, "empty holds 0 pictures"),
    Row("4 other files only", "pretrain texts", 3, "0 pictures, but 1 .csv, 1 .txt"),
    train("85 k = 0", "--k 0", 2, "k = 0"),
    train("85 k = 1", "--k 1", 2, "k = 1"),
    train("85 k = -1", "--k -1", 2, "k = -1"),
    train("85 k = 2.5", "--k 2.5", 2, "--k"),
    train("85 k = abc", "--k abc", 2, "--k"),
    Row("85 cluster, k = 1", "cluster good --k 1", 2, "--k 1: must be a whole number of at least"),
    Row("85 cluster, k = 2.5", "cluster good --k 2.5", 2, "--k 2.5"),
    Row("85 cluster, k = abc", "cluster good --k abc", 2, "--k abc"),
    train("86 k of 50 for 8 pictures", "--k 50", 3, "--k 50 needs more than 50 images, good has 8"),
    Row("86 cluster, k of 8 for 8", "cluster good --k 8", 3, "--k 8 needs more than 8 images"),
    train("88 batch of 1", "--batch-size 1", 2, "train.batch_size = 1"),
    train("89 image size 0", "--image-size 0", 2, "encoder.image_size = 0"),
    train("89 image size 7", "--image-size 7", 2, "encoder.image_size = 7"),
    train("89 image size 100000", "--image-size 100000", 2, "encoder.image_size = 100000"),
    train("90 lr nan", "--set train.lr=nan", 2, "train.lr = nan"),
    train("90 lr inf", "--set train.lr=inf", 2, "train.lr = inf"),
    train("90 lr 0", "--set train.lr=0", 2, "train.lr = 0"),
    train("90 lr -1", "--set train.lr=-1", 2, "train.lr = -1"),
    train("90 temperature 0", "--set method.instance_temperature=0", 2, "instance_temperature = 0"),
    train("90 momentum 1.5", "--set train.momentum=1.5", 2, "train.momentum = 1.5"),
    train("91 epochs 0", "--epochs 0", 2, "train.epochs = 0"),
    train("91 epochs -3", "--epochs -3", 2, "train.epochs = -3"),
    train("92 seed -1", "--seed -1", 2, "seed = -1"),
    train("92 seed 2^40", "--seed 1099511627776", 2, "seed = 1099511627776"),
    Row("92 cluster, seed -1", "cluster good --seed -1", 2, "--seed"),
    train("93 workers -1", "--workers -1", 2, "--workers"),
    train("93 workers 1000", "--workers 1000", 2, "--workers"),
    train("93 threads 0", "--threads 0", 2, "--threads"),
    train("94 unknown method", "--method ccc", 2, "ccc"),
    train("94 unknown encoder", "--encoder resnet8x", 2, "resnet8x"),
    train("94 the same with a size", "--encoder resnet8x --image-size 32", 2, "resnet8x"),
    train("94 unknown device", "--device cdua", 2, "unknown device"),
    train("94 unknown setting", "--set train.lrr=1", 2, "unknown setting train.lrr"),
    train("94 unknown option", "--epoch 3", 2, "--epoch"),
    train("94 a setting that is none", "--set nonsense", 2, "nonsense"),
    train("94 settings that are no TOML", "--config text.toml", 2, "text.toml is not TOML"),
    train("94 no settings file", "--config nowhere.toml", 2, "nowhere.toml"),
    Row("94 unknown algorithm", "cluster good --algorithm kmean", 2, "unknown algorithm"),
    train("95 no CUDA device", "--device cuda", 2, "this machine has no CUDA device"),
    Row("97 output is not ours", "pretrain good --out full", 5, "full is not empty and not a run"),
    Row("97 the same, --overwrite", "pretrain good --out full --overwrite", 5, "not a run"),
    Row("98 output is a file", "pretrain good --out file", 5, "file is a file"),
    Row("98 output below a file", "pretrain good --out file/run", 5, "file"),
    train("124 no weights there", "--init-from nowhere", 2, "--init-from nowhere"),
    Row("124 a torn run", "cluster torn --k 2", 4, "damaged"),
    Row("124 a foreign run", "cluster foreign --k 2", 4, "not a run of deepclust"),
    Row("124 resume a torn run", "pretrain good --out torn --resume", 4, "damaged"),
]  # fmt: skip

# Those that begin, and end with an error or a warning.
BEGUN = [
    train("5 one picture", QUICK, 3, "1 usable image, at least 2 are needed", "one"),
    train("6 all are broken", QUICK, 3, "0 usable images, at least 2", "broken"),
    train("60 --strict", f"{QUICK} --k 2 --strict", 3, "3 files were skipped", "mixed"),
    train("60 many skipped", f"{QUICK} --k 2", 0, "3 of 8 pictures cannot be used", "mixed"),
    train("61 all the same", f"{QUICK} --k 2", 0, "collapsed", "same"),
    train("126 weights run code", f"{QUICK} --k 2 --init-from evil.pt", 4, "nothing in it was"),
    train("87 batch above the pictures", f"{QUICK} --k 2 --batch-size 500", 0, "8 images"),
]  # fmt: skip

# These follow one another on the run of the first.
STORY = [
    Row("0 a run", f"pretrain good --out run --k 2 {QUICK}", 0, "8 images"),
    Row("97 the run is there", "pretrain good --out run", 5, "run holds a run already"),
    Row("101 resume, other options", f"{AGAIN} --batch-size 5", 4, "4 in the run, 5 now"),
    Row("103 resume what is done", AGAIN, 0, "is complete"),
    Row("86 k of 99", "cluster run --k 99 --threads 1", 3, "--k 99 needs more than 99 images"),
    Row("0 cluster", "cluster run --threads 1", 0),
    Row("63 no such labels", "evaluate run --labels nowhere.csv", 2, "nowhere.csv"),
    Row("63 labels are a folder", "evaluate run --labels good", 3, "good"),
    Row("63 labels are a picture", "evaluate run --labels good/000.png", 3, "000.png"),
    Row("0 no such clustering", "evaluate run --clustering x", 2, "no clustering x"),
]  # fmt: skip


def call(row: Row) -> tuple[int, str]:
    """Run a row in the current folder; return its exit code and the last line of its errors."""
    from deepclust.cli import run

    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = run(row.command.split())
    lines = [x for x in err.getvalue().splitlines() if x.startswith(("error:", "warning:"))]
    return code, lines[-1] if lines else ""


def main() -> None:
    """Print the table."""
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| row | command | exit | last line |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["DEEPCLUST_CACHE_DIR"] = f"{name}/cache"
        world(Path(name))
        for i, row in enumerate([*REFUSED, *BEGUN, *STORY]):
            numbered = Row(row.what, row.command.replace("--out new", f"--out new{i}"), row.code)
            code, last = call(numbered)
            shown = row.command.replace(QUICK, "…").replace(" --threads 1", "")
            last = last.replace(name, "").replace("|", "\\|")
            print(f"| {row.what} | `{shown}` | {code} | `{last}` |", flush=True)


if __name__ == "__main__":
    main()
