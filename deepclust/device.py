"""Where numbers are computed, in what precision, and from which random streams.

No function seeds the world: every draw comes from a stream with a name, so that it depends on
the seed and on what it is for, and on nothing else that happened before.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import torch

from deepclust.errors import UsageError, nearest

DEVICES = ["auto", "cpu", "cuda", "mps"]
MOST_THREADS = 16


def pick(name: str) -> torch.device:
    """Return the device called `name`; auto is CUDA, then MPS, then the CPU.

    Raises UsageError for an unknown device or one that is not there.
    """
    kind = name.partition(":")[0]
    if kind not in DEVICES:
        raise UsageError(f"unknown device {name!r}", hint=nearest(name, DEVICES))
    found = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if kind == "auto":
        return torch.device(next(k for k in ("cuda", "mps", "cpu") if found[k]))
    if not found[kind]:
        raise UsageError(f"--device {name}: this machine has no {kind.upper()} device")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name}: {error}") from error


def use_threads(threads: int | None) -> int:
    """Set how many threads compute; None takes the machine's cores, 16 at most.

    Results are the same bits only for the same number of threads, so the run records it.
    """
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = min(cores or 1, MOST_THREADS)
    torch.set_num_threads(threads)
    return threads


def has_fast_bf16(device: torch.device) -> bool:
    """Tell whether bf16 matrix products are quicker than float32 on this device."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    if capabilities:
        return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    asked = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(asked and asked())


def _key(seed: int, name: tuple[str | int, ...]) -> int:
    text = "\x1f".join(map(str, (seed, *name))).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "little")


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """Return the random stream of that name, such as `stream(0, "order", epoch)`."""
    return np.random.Generator(np.random.PCG64(_key(seed, name)))


def torch_stream(seed: int, *name: str | int) -> torch.Generator:
    """The same as a torch generator on the CPU."""
    return torch.Generator().manual_seed(_key(seed, name) & (2**63 - 1))
