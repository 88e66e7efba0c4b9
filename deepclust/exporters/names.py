"""Names of files that every system takes, made from names that a stranger chose."""

from __future__ import annotations

import hashlib
import re
import unicodedata

LONGEST = 255  # bytes, on nearly every file system
UNWANTED = re.compile(r'[<>:"/\\|?*]')
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def clean(name: str) -> str:
    """Return the last part of a picture's name as a file name for any system.

    Characters that Windows refuses, control and formatting characters become `_`; so does a dot
    in front, which would hide the file. What is longer than 255 bytes is cut, with a hash of the
    whole name in it.
    """
    base = name.rpartition("/")[2]
    shown = "".join("_" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") else c for c in base)
    shown = UNWANTED.sub("_", shown).rstrip(". ")
    if shown.startswith((".", " ")) or RESERVED.fullmatch(shown) or not shown:
        shown = f"_{shown[1:] if shown.startswith(('.', ' ')) else shown}"
    return _fitting(shown, "", name)


def _fitting(name: str, mark: str, whole: str) -> str:
    """Put `mark` before the extension, and cut the name to what fits."""
    stem, dot, extension = name.rpartition(".")
    if not dot or not stem or len(extension) > 10:
        stem, dot, extension = name, "", ""
    end = f"{mark}{dot}{extension}"
    if len((stem + end).encode()) > LONGEST:
        end = f"-{hashlib.sha256(whole.encode()).hexdigest()[:8]}{end}"
        stem = stem.encode()[: LONGEST - len(end.encode())].decode("utf-8", "ignore")
    return stem + end


class Names:
    """Gives each picture of a folder a name of its own, also where case does not count."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.next: dict[str, int] = {}

    def give(self, name: str) -> str:
        """Return the clean name, numbered if it is taken: `cat.png`, `cat-2.png`, …"""
        wanted = given = clean(name)
        number = self.next.get(_key(wanted), 1)
        while _key(given) in self.taken:
            number += 1
            given = _fitting(wanted, f"-{number}", name)
        self.next[_key(wanted)] = number
        self.taken.add(_key(given))
        return given


def _key(name: str) -> str:
    """What file systems that ignore case, or write accents in two ways, tell names apart by."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
