"""Find the pictures of a folder; `reader.py` reads them.

Folders and names come from strangers: nothing here follows a link out of the folder or waits for
a pipe. A file that cannot be used is listed with a reason, and never stops the scan.

A picture's name is its path below the root with `/`, always valid UTF-8 and unique; `locate` turns
it back into a path.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deepclust.data.reader import FORMATS, LEAVES, NOT_SUPPORTED, head_of, sniff
from deepclust.errors import DataError, UsageError
from deepclust.progress import SILENT, Progress

MAX_DEPTH = 100
# fmt: off
EXTENSIONS = frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".dib", ".tif", ".tiff",
    ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".avif",
))
UNSUPPORTED = frozenset((
    ".heic", ".heif", ".hif", ".jxl", ".svg", ".svgz", ".jp2", ".j2k", ".jpf", ".jpx", ".psd",
    ".exr", ".hdr", ".ico", ".icns", ".tga", ".dng", ".cr2", ".cr3", ".nef", ".nrw", ".arw",
    ".orf", ".rw2", ".raf", ".pef", ".srw", ".x3f",
))
# Never opened to see whether they are pictures: other kinds, and half-written or backup copies.
OTHER = frozenset((
    ".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".html", ".htm", ".md", ".pdf", ".eps",
    ".ps", ".py", ".ipynb", ".yaml", ".yml", ".toml", ".ini", ".log", ".zip", ".gz", ".tar",
    ".7z", ".rar", ".npy", ".npz", ".pt", ".pth", ".safetensors", ".parquet", ".db", ".mp4",
    ".mov", ".avi", ".mkv", ".mp3", ".wav", ".xmp", ".aae", ".part", ".crdownload", ".download",
    ".tmp", ".bak",
))
# fmt: on
JUNK = frozenset(("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin"))
OUR_RUN = re.compile(rb'\s*\{\s*"format"\s*:\s*"deepclust-run"')


class ImageFile(NamedTuple):
    """A file that should be a picture. size in bytes; of a link, size and time are its target's.

    where: its path as text; a `Path` costs more than all the rest of the scan, so `path` makes it.
    """

    name: str
    where: str
    size: int
    mtime_ns: int

    @property
    def path(self) -> Path:
        return Path(self.where)


@dataclass(frozen=True)
class Skipped:
    """A file that looks like a picture and cannot be used; reason is one of `REASONS`."""

    name: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """What a folder holds. files and skipped are sorted by name.

    ignored: number of entries that are no pictures by their name; a hidden folder counts as one.
    notes: lines that a person should see.
    """

    root: Path
    files: list[ImageFile]
    skipped: list[Skipped]
    ignored: int
    notes: list[str]


def escape(name: str) -> str:
    """Return a path as valid UTF-8: a byte that is not UTF-8 is written `\\xHH`.

    A backslash that would then read as such an escape is written `\\x5c`, so that no two paths
    share a name.
    """
    if os.sep != "/":
        name = name.replace(os.sep, "/")
    if "\\" in name:
        name = re.sub(r"\\(?=x[0-9a-f]{2})", r"\\x5c", name)
    if not name.isascii():
        name = re.sub("[\udc80-\udcff]", lambda m: f"\\x{ord(m[0]) - 0xDC00:02x}", name)
    return name


def locate(root: Path, name: str) -> Path:
    """Return the path of the picture called `name` below `root`: the inverse of the escapes."""

    def byte(match: re.Match[str]) -> str:
        value = int(match[1], 16)
        return chr(value if value < 0x80 else 0xDC00 + value)

    return root / re.sub(r"\\x([0-9a-f]{2})", byte, name)


def find_images(
    root: str | Path,
    *,
    follow_links: bool = False,
    exclude: Iterable[str | Path] = (),
    progress: Progress = SILENT,
) -> Listing:
    """List the pictures of `root` and of all folders below it.

    A file is taken by its extension; one with no or an odd extension by its first bytes.
    Left out: hidden files and folders, what systems leave behind, runs of deepclust, `exclude`.
    A link to a file inside the root is read; one that leaves it is skipped unless `follow_links`,
    which also walks linked folders, each folder once.

    Raises UsageError if root does not exist, DataError if it is no folder, a run or has no picture.
    """
    root = Path(root).expanduser()
    if not os.path.lexists(root):
        raise UsageError(f"{root} does not exist", hint="give the folder that holds the pictures")
    if not root.is_dir():
        raise DataError(f"{root} is not a folder", hint="give the folder that holds the pictures")
    walk = _Walk(
        root, follow_links, {os.path.realpath(Path(path).expanduser()) for path in exclude}
    )
    with progress.stage("scan", unit="files") as stage:
        while walk.folders or walk.linked:
            stage.advance(walk.step())
    return walk.listing()


class _Walk:
    """The state of a scan. Real folders come first, so that a link never takes a folder's name."""

    def __init__(self, root: Path, follow_links: bool, exclude: set[str]) -> None:
        self.root, self.follow, self.exclude = root, follow_links, exclude
        self.inside = os.path.realpath(root).rstrip(os.sep) + os.sep
        # Path, real path and name, both with a separator at their end, and depth.
        self.folders = [(os.fspath(root), self.inside, "", 0)]
        self.linked: list[tuple[str, str, str, int]] = []
        self.seen: set[tuple[int, int]] = set()
        self.files: list[ImageFile] = []
        self.skipped: list[Skipped] = []
        self.others: Counter[str] = Counter()
        self.notes: list[str] = []

    def step(self) -> int:
        """List one folder; return its number of entries."""
        path, real, name, depth = (self.folders or self.linked).pop()
        if depth > MAX_DEPTH:
            self.notes.append(f"left out, more than {MAX_DEPTH} folders deep: {_short(name)}")
            return 0
        try:
            info = Path(path).stat()
            if (info.st_dev, info.st_ino) in self.seen:
                return 0
            self.seen.add((info.st_dev, info.st_ino))
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            if not name:
                raise DataError(f"cannot open folder {path}: {error.strerror}") from error
            self.notes.append(f"cannot open folder {_short(name)}: {error.strerror}")
            return 0
        if any(entry.name == "run.json" and _is_run(entry) for entry in found):
            if not name:
                raise DataError(f"{path} is a run of deepclust", hint="give a folder of pictures")
            self.others["runs"] += 1
            return 0
        for entry in found:
            if entry.name.startswith(".") or entry.name.lower() in JUNK:
                self.others["hidden"] += 1
            elif real + entry.name in self.exclude:
                self.others["excluded"] += 1
            elif entry.is_dir(follow_symlinks=False):
                below = real + entry.name + os.sep
                self.folders.append((entry.path, below, name + entry.name + "/", depth + 1))
            else:
                self.file(entry, name + entry.name, depth)
        return len(found)

    def file(self, entry: os.DirEntry[str], name: str, depth: int) -> None:
        """Take, skip or ignore whatever is no real folder."""
        try:
            info = entry.stat()
        except OSError:
            info = None
        extension = _extension(entry.name)
        link = entry.is_symlink()
        regular = info and stat.S_ISREG(info.st_mode)
        if info and regular and not link and extension in EXTENSIONS:  # nearly all files
            self.files.append(ImageFile(escape(name), entry.path, info.st_size, info.st_mtime_ns))
            return
        leaves = False
        if link:
            target = os.path.realpath(entry.path)
            if info and stat.S_ISDIR(info.st_mode):
                if self.follow and target not in self.exclude:
                    self.linked.append((entry.path, target + os.sep, name + "/", depth + 1))
                else:
                    self.others["links to folders"] += 1
                return
            leaves = not self.follow and not target.startswith(self.inside)
        if extension in UNSUPPORTED:
            self.skipped.append(Skipped(escape(name), NOT_SUPPORTED))
        elif extension in EXTENSIONS and not (regular and not leaves):
            reason = LEAVES if regular else "not a regular file" if info else "missing"
            self.skipped.append(Skipped(escape(name), reason))
        elif info and (extension in EXTENSIONS or (regular and not leaves and _odd(entry))):
            self.files.append(ImageFile(escape(name), entry.path, info.st_size, info.st_mtime_ns))
        else:
            plain = extension[1:].isalnum() and len(extension) < 10
            self.others[extension if plain else "other"] += 1

    def listing(self) -> Listing:
        """Sort and sum up. Raises DataError if there is no picture."""
        self.files.sort(key=lambda file: file.name)
        self.skipped.sort(key=lambda file: file.name)
        reasons = Counter(file.reason for file in self.skipped)
        if count := reasons[NOT_SUPPORTED]:
            self.notes.append(
                f"{count} files are in a format that cannot be read (HEIC, JPEG XL, SVG, raw, "
                "…): convert them to JPEG or PNG"
            )
        if count := reasons[LEAVES] + self.others["links to folders"]:
            self.notes.append(f"{count} links were not followed: --follow-links follows them")
        if not self.files:
            raise self.nothing()
        ignored = sum(self.others.values())
        return Listing(self.root, self.files, self.skipped, ignored, self.notes)

    def nothing(self) -> DataError:
        """Say what was seen instead of pictures."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.others.most_common(4) if count)
        message = f"{self.root} holds 0 pictures" + (f", but {kinds}" if kinds else "")
        if self.skipped:
            first = self.skipped[0]
            hint = f"{len(self.skipped)} skipped, first {_short(first.name)}: {first.reason}"
        else:
            hint = f"looked in all its folders for {', '.join(sorted(EXTENSIONS))}"
        return DataError(message, hint="; ".join([hint, *self.notes[-1:]]))


def _extension(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot > 0 else ""


def _odd(entry: os.DirEntry[str]) -> bool:
    """Tell whether a file without an extension that we know is a picture all the same."""
    return _extension(entry.name) not in OTHER and sniff(head_of(entry.path)) in FORMATS


def _short(name: str) -> str:
    name = escape(name)
    return name if len(name) <= 100 else f"{name[:50]}…{name[-49:]}"


def _is_run(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) and bool(OUR_RUN.match(head_of(entry.path, 256)))
