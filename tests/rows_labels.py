"""Rows of labels and of assignments: tables as people, spreadsheets and strangers write them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TABLES: dict[str, bytes] = {}
NAMES = [f"{i:03d}.png" for i in range(8)]
WORDS = ["cat", "dog"] * 4
HEAD = "file_name,label"


class Labelled(NamedTuple):
    """A command on a table of `TABLES`."""

    what: str
    command: str
    code: int
    says: str


def lines(names: list[str], words: list[str], head: str = HEAD, mark: str = ",") -> str:
    rows = [f"{n}{mark}{w}" for n, w in zip(names, words)]
    return "\n".join([head, *rows] if head else rows) + "\n"


def keep(what: str, content: str | bytes, kind: str) -> str:
    name = f"{kind}-{what.split()[0]}-{len(TABLES)}.csv"
    TABLES[name] = content if isinstance(content, bytes) else content.encode()
    return name


def label(what: str, content: str | bytes, code: int = 0, says: str = "") -> Labelled:
    """Score the clusters of `run` against a table."""
    table = keep(what, content, "labels")
    return Labelled(what, f"evaluate run --labels {table} --no-baselines", code, says)


def clusters(what: str, content: str, code: int = 0, says: str = "", labels: str = "") -> Labelled:
    """Score a table of clusters, against labels of the usual kind or others."""
    table = keep(what, content, "clusters")
    truth = keep(what, labels or lines(NAMES, WORDS), "labels")
    return Labelled(what, f"evaluate --assignments {table} --labels {truth}", code, says)


def grouped(ids: list[str], names: list[str] = NAMES) -> str:
    return lines(names, ids, "file_name,cluster")


PLAIN = lines(NAMES, WORDS)
BARE = "no column of names"
LABELS = [
    label("64 half have no row", lines(NAMES[:4], WORDS), 0, "4 of 8 pictures have no label"),
    label("65 a row without a picture", PLAIN + "none.png,cat\n", 0, "1 row names no picture"),
    label("66 no row matches", lines(["x/a.png"], ["cat"]), 3, "none of its 1 rows names"),
    label("66 another extension", lines(["000.jpg"], ["cat"]), 3, "hint: the extensions differ"),
    label("67 a row twice", PLAIN + "./000.png,cat\n", 0, "a picture that had one already"),
    label("67 two labels", PLAIN + "./000.png,dog\n", 3, "rows 2 and 10 give '000.png' two labels"),
    label("68 BOM and CRLF", "\ufeff" + PLAIN.replace("\n", "\r\n")),
    label("68 lone CR", PLAIN.replace("\n", "\r")),
    label("69 semicolons", PLAIN.replace(",", ";")),
    label("69 tabs", PLAIN.replace(",", "\t")),
    label("70 UTF-16", PLAIN.encode("utf-16")),
    label("70 Windows-1252", PLAIN.encode() + b"x,caf\xe9\n", 3, "line 10: byte 0xE9 is not UTF-8"),
    label("71 quoted commas", PLAIN.replace("cat", '"cat, small\nor old"')),
    label("73 backslashes", lines([f".\\{n}" for n in NAMES], WORDS)),
    label("74 without extension", lines([n[:-4] for n in NAMES], WORDS)),
    label("75 numbers", lines(NAMES, ["1", "01"] * 4)),
    label("76 NA and nan", lines(NAMES, ["NA", "nan"] * 4)),
    label("77 spaces", lines(NAMES, [f"  {w} " for w in WORDS])),
    label("78 an empty label", PLAIN.replace("000.png,cat", "000.png,"), 0, "1 of 8 pictures have"),
    label("79 one class", lines(NAMES, ["cat"] * 8), 0, "all labels are 'cat'"),
    label("79 all differ", lines(NAMES, NAMES), 0, "every picture has a label of its own"),
    label("80 no header", lines(NAMES, WORDS, ""), 0, "its first row was read as a picture"),
    label("80 no such columns", lines(["a,b"], ["c"], "who,what,when"), 3, BARE),
    label("81 columns swapped", lines(WORDS, NAMES, "LABEL,File_Name")),
    label("82 one column", "file_name\n000.png\n", 3, "line 1: one column only"),
    label("82 ragged", PLAIN + "x.png\n", 3, "line 10: 1 columns where the first row has 2"),
    label("82 NUL", PLAIN + "x.png,c\0t\n", 3, "line 10: a NUL character"),
    label("82 a long field", f"{HEAD}\n000.png,{'x' * 140_000}\n", 3, "line 2: field larger"),
    label("83 HTML", lines(NAMES, ["<script>alert(1)</script>", "<b>x"] * 4)),
    label("83 formulas and paths", lines(NAMES, ["=1+1", "../../up"] * 4)),
    label("83 endless and alike", lines(NAMES, ["x" * 400, "Sea", "sea", "/etc/x"] * 2)),
    label("84 a row outside", PLAIN + "../../../etc/passwd,cat\n", 0, "../../../etc/passwd"),
    label("136 nobody labelled", lines(NAMES, [""] * 8), 3, "every label is empty"),
    clusters("132 three clusters, two classes", grouped(["0", "1", "2", "0", "1", "2", "0", "1"])),
    clusters("133 noise", grouped(["0", "1", "-1", "0", "1", "-1", "0", "1"])),
    clusters("133 all noise", grouped(["-1"] * 8)),
    clusters("134 one cluster", grouped(["0"] * 8)),
    clusters("134 all alone", grouped([str(i) for i in range(8)])),
    clusters("135 half labelled", grouped(WORDS), 0, "no label", lines(NAMES[:4], WORDS)),
    clusters("137 another order", grouped(WORDS[::-1], NAMES[::-1])),
    clusters("137 other lengths", grouped(WORDS, NAMES[:5]), 0, "3 rows name no picture"),
    clusters("137 other pictures", grouped(WORDS, [f"x{n}" for n in NAMES]), 3, "names a picture"),
    clusters("138 gaps", grouped(["0", "7", "100000", "7", "0", "7", "100000", "7"])),
    clusters("140 no word for a cluster", grouped(["cat", "noise", ""] * 2)),
    clusters("140 no header", lines(NAMES, WORDS, ""), 3, BARE),
    clusters("140 no number", "file,cluster,confidence\na,1,high\n", 3, "row 2: 'high'"),
    clusters("140 two clusters", grouped(["0", "1"], ["a", "a"]), 3, "rows 2 and 3 put 'a'"),
    clusters("140 a cut line", grouped(WORDS) + "x.png\n", 3, "line 10: 1 columns"),
]  # fmt: skip


def absolute(root: Path) -> bytes:
    """Labels by paths from the root of the file system, row 72."""
    return lines([f"{root / 'good' / name}" for name in NAMES], WORDS).encode()


def write_tables(root: Path) -> None:
    for name, content in TABLES.items():
        (root / name).write_bytes(content)
    (root / "absolute.csv").write_bytes(absolute(root))
