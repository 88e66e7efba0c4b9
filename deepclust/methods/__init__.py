"""The methods by name. A static table: nothing is imported before a method is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from deepclust.errors import UsageError, nearest

if TYPE_CHECKING:
    from deepclust.methods.base import Method

DEFAULT = "cc"
"""The best measured in equal time, from pixels as on features: docs/results.md."""
METHODS = {
    "cc": "deepclust.methods.cc:CC",
    "pcl": "deepclust.methods.pcl:PCL",
    "simclr": "deepclust.methods.simclr:SimCLR",
}


def find(name: str) -> type[Method]:
    """Return the class of the method called `name`, or the class at `package.module:Class`.

    Raises UsageError if there is no such method.
    """
    place = METHODS.get(name, name)
    module, colon, attribute = place.partition(":")
    if not colon:
        raise UsageError(f"unknown method {name!r}", hint=nearest(name, list(METHODS)))
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot load the method {name!r}: {error}") from error
