"""Deep clustering of image folders: learn a representation, cluster, check, export.

`pretrain`, `cluster`, `predict`, `evaluate` and `export` do what the commands of the same names do.
They are loaded on first use (PEP 562), since torch alone takes seconds to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepclust.steps.cluster import cluster
    from deepclust.steps.evaluate import evaluate
    from deepclust.steps.export import export
    from deepclust.steps.predict import predict
    from deepclust.steps.pretrain import pretrain

__version__ = "0.1.0"
__all__ = ["__version__", "cluster", "evaluate", "export", "predict", "pretrain"]


def __getattr__(name: str) -> Any:
    if name in ("pretrain", "cluster", "predict", "evaluate", "export"):
        from importlib import import_module

        return getattr(import_module(f"deepclust.steps.{name}"), name)
    raise AttributeError(f"module 'deepclust' has no attribute {name!r}")
