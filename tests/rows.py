"""What people and strangers give to the command line, with the exit code and the words they get.

`test_rows.py` holds every row to it; `python -m tests.rows` prints the table of
docs/reliability.md.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tests import hostile
from tests.faults import Server, command, draw
from tests.rows_faults import hostile_weights, newer, under
from tests.rows_labels import LABELS, write_tables

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
    newer(root / "newer")
    for name in ("seven", "seven/below", "going", "cutting"):
        draw(root / name, 5)
    (root / "shut").mkdir()


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
    Row("98 output without permission", "pretrain good --out shut/run", 5, "no permission"),
    Row("128 a newer run", "cluster newer --k 2", 4, "made by a newer version, deepclust 9.0"),
    Row("124 resume a torn run", "pretrain good --out torn --resume", 4, "damaged"),
]  # fmt: skip

# Those that begin, and end with an error or a warning.
BEGUN = [
    train("5 one picture", QUICK, 3, "1 usable image, at least 2 are needed", "one"),
    train("6 all are broken", QUICK, 3, "0 usable images, at least 2", "broken"),
    train("60 --strict", f"{QUICK} --k 2 --strict", 3, "3 files were skipped", "mixed"),
    train("60 many skipped", f"{QUICK} --k 2", 0, "3 of 8 pictures cannot be used", "mixed"),
    train("61 all the same", f"{QUICK} --k 2", 0, "collapsed", "same"),
    train("62 duplicates", f"{QUICK} --k 2", 0, "6 images", "same"),
    train("107 all in one", f"{QUICK} --k 2", 0, "collapsed", "same"),
    train("126 weights run code", f"{QUICK} --k 2 --init-from evil.pt", 4, "nothing in it was"),
    train("87 batch above the pictures", f"{QUICK} --k 2 --batch-size 500", 0, "8 images"),
]  # fmt: skip

BEGUN += [
    train("7 a picture without permission", f"{QUICK} --k 2", 0, "000.png: no permission", "seven"),
    train("8 a sub-folder without permission", f"{QUICK} --k 2", 0, "cannot open folder below/",
          "seven"),
    train("29 a picture goes while it runs", f"{QUICK} --k 2", 0, "1 files were changed", "going"),
    train("30 a picture is cut while it runs", f"{QUICK} --k 2", 0, "1 files were changed",
          "cutting"),
    train("93 more workers than cores", f"{QUICK} --k 2 --workers 250", 0, "250 workers were"),
    train("96 offline", f"--encoder resnet18 --weights hub --k 2 {TINY}", 3, "cannot download"),
    train("99 hardly any room", f"{QUICK} --k 2", 5, "no space for new"),
    train("100 resume, nothing there", f"{QUICK} --k 2 --resume", 0, "a new run begins"),
    train("104 a loss of NaN", f"{QUICK} --k 2", 6, "became nan at epoch 1, step 2"),
    train("104 an infinite loss", f"{QUICK} --k 2", 6, "became inf at epoch 1, step 2"),
    train("105 an embedding of NaN", f"{QUICK} --k 2", 6, "NaN"),
    train("116 out of memory", f"{QUICK} --k 2", 6, "out of memory"),
    train("117 no shared memory", f"{QUICK} --k 2 --workers 2", 0, "read in this process"),
    train("118 a bug while reading", f"{QUICK} --k 2", 1, "a bug, KeyError"),
    train("123 a clock that goes back", f"{QUICK} --k 2", 0, "8 images"),
]  # fmt: skip


def weighed(what: str, name: str, says: str) -> Row:
    return train(what, f"{QUICK} --k 2 --init-from weights/{name}", 4, says)


WEIGHTS = [
    weighed("124 an empty file", "empty.pt", "empty.pt is empty"),
    weighed("124 a text", "text.pt", "is not a file of weights"),
    weighed("124 a picture", "picture.pt", "is not a file of weights"),
    weighed("124 a cut file", "cut.pt", "damaged"),
    weighed("124 a folder", "", "model.safetensors: No such file"),
    weighed("126 a pickle that runs code", "raw.pt", "nothing in it was run"),
    weighed("126 the same in a zip", "zip.pt", "nothing in it was run"),
    weighed("127 a whole module", "module.pt", "nothing in it was run"),
    weighed("129 another network", "other.safetensors", "does not fit the encoder"),
    weighed("130 NaN", "nan.safetensors", "NaN"),
    weighed("131 a packed archive", "bomb.pt", "packed archive"),
    weighed("131 a header of 2^60 bytes", "header.safetensors", "damaged"),
]

# These follow one another on the run of the first.
STORY = [
    Row("0 a run", f"pretrain good --out run --k 2 {QUICK}", 0, "8 images"),
    Row("97 the run is there", "pretrain good --out run", 5, "run holds a run already"),
    Row("101 resume, other options", f"{AGAIN} --batch-size 5", 4, "4 in the run, 5 now"),
    Row("102 resume, other pictures", AGAIN.replace("good", "seven"), 4, "seven is not what the"),
    Row("103 resume what is done", AGAIN, 0, "is complete"),
    Row("86 k of 99", "cluster run --k 99 --threads 1", 3, "--k 99 needs more than 99 images"),
    Row("0 cluster", "cluster run --threads 1", 0),
    Row("119 two at once", "cluster run --threads 1", 5, "run is in use by process"),
    Row("125 a flipped bit in the embedding", "cluster run --threads 1", 4, "embeddings.npy is"),
    Row("125 a flipped bit in a table", "cluster run --threads 1", 4, "images.csv is damaged"),
    Row("125 a flipped bit in run.json", "cluster run --threads 1", 4, "run.json is damaged"),
    Row("108 empty clusters", f"pretrain same --out alike --k 3 {QUICK}", 0, "collapsed"),
    Row("108 empty clusters", "cluster alike --k 3 --threads 1", 0, "of 3 clusters are used"),
    Row("106 a huge embedding", f"pretrain good --out huge --k 2 {QUICK}", 0),
    Row("106 clusters of it", "cluster huge --algorithm kmeans --threads 1", 6, "beyond 1e15"),
    Row("63 no such labels", "evaluate run --labels nowhere.csv", 2, "nowhere.csv"),
    Row("63 labels are a folder", "evaluate run --labels good", 3, "good"),
    Row("63 labels are a picture", "evaluate run --labels good/000.png", 3, "000.png"),
    Row("0 no such clustering", "evaluate run --clustering x", 2, "no clustering x"),
    Row("72 absolute paths", "evaluate run --labels absolute.csv --no-baselines", 0),
    *(Row(*one) for one in LABELS),
]  # fmt: skip

# Folders of odd names and odd pictures go through every command.
JOBS = [
    Row("9–32 odd names", f"pretrain tree --out tree/run --k 3 {QUICK}", 0, "5 skipped"),
    Row("31 output in the folder", f"pretrain tree --out tree/run2 --k 3 {QUICK}", 0, "5 skipped"),
    Row("9–32 odd names", "cluster tree/run --threads 1", 0),
    Row("9–32 odd names", "evaluate tree/run --labels folders --no-baselines", 0),
    Row("9–32 odd names", "export tree/run --to csv --out tree.csv", 0),
    Row("9–32 odd names", "export tree/run --to json --out tree.json", 0),
    Row("9–32 odd names", "export tree/run --to folders --out treated", 0),
    Row("33–59 odd pictures", f"pretrain pictures --out odd --k 3 {QUICK}", 0, "cannot be used"),
    Row("33–59 odd pictures", "cluster odd --threads 1", 0),
    Row("33–59 odd pictures", "evaluate odd", 0),
    Row("33–59 odd pictures", "export odd --to folders --out odder", 0),
]

# What no single command line shows, and the test that does.
ELSEWHERE = {
    "28 100,000 files": "by hand, below",
    "50 every EXIF orientation": "test_reader.py::test_a_picture_is_turned_upright",
    "114 kill -9 of the parent": "test_store.py::test_workers_end_with_a_parent_that_is_killed",
    "115 a reader process is killed":
        "test_store.py::test_a_worker_that_is_killed_from_outside_costs_no_picture",
    "120 a lock that a dead process left":
        "test_run.py::test_the_second_process_in_a_run_is_refused_with_the_number_of_the_first",
    "139 NaN in a score": "test_report.py::test_what_is_undefined_is_null_in_json",
}  # fmt: skip

# Faults at a moment of `pretrain`: the event, which one of its kind, what happens, the exit code.
MOMENTS = [
    ("109 SIGTERM", "step", 1, {"action": "term"}, 143),
    ("110 Ctrl-C", "step", 4, {"action": "int"}, 130),
    ("110 Ctrl-C twice", "step", 0, {"action": "int int"}, 130),
    ("111 the terminal is closed", "step", 1, {"action": "hup"}, 129),
    ("111 nobody reads the output", "", 0, {"closed": True}, 0),
    ("112 kill -9", "step", 4, {"action": "kill"}, -9),
    ("113 kill -9 in a checkpoint", "half", 9, {"action": "kill"}, -9),
    ("121 no space", "open embeddings.npy", 0, {"action": "full"}, 5),
    ("121 a limit of the file size", "", 0, {"megabytes": 1}, 5),
    ("122 the output folder is removed", "step", 1, {"action": "away"}, 5),
]


def more(root: Path) -> None:
    """Make what only the longer stories need."""
    write_tables(root)
    hostile.tree(root / "tree")
    hostile.write(root / "pictures")


def numbers(what: str) -> range:
    """Return the numbers of the rows that a case is about: of "9–32 …", 9 to 32."""
    first, _, last = what.split()[0].partition("–")
    return range(int(first), int(last or first) + 1)


def call(row: Row) -> tuple[int, str]:
    """Run a row in the current folder; return its exit code and the last line of its errors."""
    from deepclust.cli import run

    err = io.StringIO()
    quiet = contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO())
    with quiet[0], quiet[1], under(row.what):
        code = run(row.command.split())
    return code, word(err.getvalue(), row.says)


def word(err: str, says: str = "") -> str:
    """Return the line of an error, or what was said about the matter where there is none."""
    lines = err.splitlines()
    errors = [line for line in lines if line.startswith("error:")]
    return [*errors, *(line for line in lines if says and says in line), ""][0]


def show(what: str, command: str, code: object, last: str, root: Path) -> None:
    last = last.replace(f"{root}/", "").replace("|", "\\|")
    shown = command.replace(f" {QUICK}", " …").replace(" --threads 1", "")
    print(f"| {what} | `{shown}` | {code} |{f' `{last}` ' if last else ' '}|", flush=True)


def main() -> None:
    """Print the tables."""
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| row | command | exit | last line |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name, Server() as server:
        root = Path(name)
        os.chdir(root)
        world(root)
        more(root)
        hostile_weights(root / "weights")
        for i, row in enumerate([*REFUSED, *BEGUN, *WEIGHTS, *STORY, *JOBS]):
            os.environ["DEEPCLUST_CACHE_DIR"] = f"{root}/cache{i if row in BEGUN else ''}"
            numbered = replace(row, command=row.command.replace("--out new", f"--out new{i}"))
            show(row.what, row.command, *call(numbered), root)
        moments(server, root)
        for what, test in ELSEWHERE.items():
            print(f"| {what} | {test} | | |")
        print("\n| picture | becomes |\n|---|---|")
        for file, case in hostile.pictures().items():
            print(f"| `{file}` | {case.outcome} |")


def moments(server: Server, root: Path) -> None:
    images = draw(root / "images", 10)
    _, _, events = server.run(*command(images, root / "whole", "cc"), cache=root / "cache")
    for i, (what, event, count, fault, _) in enumerate(MOMENTS):
        run, at = root / f"moment{i}", [n for n, e in enumerate(events) if e == event]
        given = {**fault, "at": at[count] if at else None, "away": str(run)}
        code, err, _ = server.run(*command(images, run, "cc"), cache=run / ".." / f"c{i}", **given)
        show(what, f"pretrain images --out run …, at {event}" if event else "pretrain images …",
             code, word(err).replace(run.name, "run"), root)  # fmt: skip


if __name__ == "__main__":
    main()
