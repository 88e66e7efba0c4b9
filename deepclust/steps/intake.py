"""What a run takes in: the pictures of a folder are found, decoded once, and written down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deepclust import files
from deepclust.errors import DataError
from deepclust.progress import Progress
from deepclust.run import HOME, Run, fingerprint

if TYPE_CHECKING:
    from deepclust.config import Settings
    from deepclust.data.images import Listing, Skipped
    from deepclust.data.store import Rows

LOUD = 0.05  # share of skipped pictures from which on the warning is loud


def find(images: Path, asked: Settings, out: Path, k: int | None = None) -> Listing:
    """List the pictures of a folder; what we write below it is none.

    Raises DataError if there is no picture, or not more than k.
    """
    from deepclust.data.images import find_images

    listing = find_images(
        images, follow_links=asked.data.follow_links, exclude=[out, HOME, "exports"]
    )
    if not listing.files:
        seen = len(listing.skipped) + listing.ignored
        raise DataError(
            f"{images} holds no images" + (f" among {seen} files" if seen else ""),
            hint="JPEG, PNG, WebP, BMP, GIF, TIFF and AVIF are read, in all sub-folders",
        )
    enough(images, len(listing.files), k)
    return listing


def enough(images: Path, count: int, k: int | None) -> None:
    """Raise DataError unless there are more pictures than k."""
    if k is not None and k >= count:
        raise DataError(f"--k {k} needs more than {k} images, {images} has {count}")


def decode(
    listing: Listing, chosen: Settings, workers: int, progress: Progress
) -> tuple[Rows, list[Skipped]]:
    """Decode every picture once; return the squares and what was skipped."""
    from deepclust.data.store import load_pixels, store_side

    return load_pixels(
        listing, store_side(chosen.encoder.image_size or 128), fit=chosen.data.fit,
        max_pixels=chosen.data.max_pixels, workers=workers, progress=progress,
    )  # fmt: skip


def record(
    run: Run, listing: Listing, rows: Rows, skipped: list[Skipped], k: int | None, strict: bool,
    progress: Progress,
) -> None:  # fmt: skip
    """Write images.csv, skipped.csv and duplicates.csv, and say how many pictures there are.

    Raises DataError for fewer than two pictures, or not more than k, or any skipped if strict.
    """
    names = [file.name for file in rows.files]
    table = sorted((one.name, one.reason) for one in skipped)
    files.write_csv(
        run.path / "skipped.csv", ["file_name", "reason"],
        [(files.path_cell(name), reason) for name, reason in table],
    )  # fmt: skip
    files.write_csv(
        run.path / "images.csv", ["file_name"], [[files.path_cell(name)] for name in names]
    )
    run.update(
        images={
            "root": str(listing.root.resolve()),
            "found": len(names) + len(skipped) + listing.ignored,
            "used": len(names), "skipped": len(skipped), "ignored": listing.ignored,
            "fingerprint": content(rows),
        }
    )  # fmt: skip
    for note in listing.notes:
        progress.say(note)
    _tell(run, len(names), table, strict, progress)
    _repeats(run, names, rows, progress)
    if len(names) < 2:
        first = f"; the first skipped: {table[0][0]}, {table[0][1]}" if table else ""
        raise DataError(
            f"{listing.root} has {len(names)} usable image{'s' * (len(names) != 1)}, at least 2 "
            f"are needed{first}"
        )
    enough(listing.root, len(names), k)


def _repeats(run: Run, names: list[str], rows: Rows, progress: Progress) -> None:
    """Write duplicates.csv: each picture that repeats an earlier one, and which."""
    from deepclust.algorithms import duplicates

    found = duplicates.find(rows)
    files.write_csv(
        run.path / "duplicates.csv", ["file_name", "duplicate_of", "kind"],
        (
            (files.path_cell(names[i]), files.path_cell(names[of]), "same" if equal else "near")
            for i, (of, equal) in enumerate(zip(found.of, found.same)) if of >= 0
        ),
    )  # fmt: skip
    if found.count:
        what = (
            "1 picture repeats another"
            if found.count == 1
            else (f"{found.count} pictures repeat others")
        )
        progress.say(f"{what}, see {run.path / 'duplicates.csv'}")


def content(rows: Rows) -> str:
    """Return the fingerprint of the pictures: their names and sizes."""
    return fingerprint([file.name for file in rows.files], [file.size for file in rows.files])


def _tell(
    run: Run, used: int, skipped: list[tuple[str, str]], strict: bool, progress: Progress
) -> None:
    for name, reason in skipped[:5]:
        progress.say(f"skipped {name}: {reason}")
    if len(skipped) > 5:
        progress.say(f"skipped {len(skipped) - 5} more, see {run.path / 'skipped.csv'}")
    progress.say(f"{used} images" + (f", {len(skipped)} skipped" if skipped else ""))
    if skipped and strict:
        raise DataError(f"{len(skipped)} files were skipped, see {run.path / 'skipped.csv'}")
    if len(skipped) > LOUD * (used + len(skipped)):
        progress.warn(f"{len(skipped)} of {used + len(skipped)} pictures cannot be used")
