"""The one place that opens or writes files of weights; nothing in them is ever executed.

We write safetensors with a header of our own and a digest over all of it, because safetensors
and torch both load a flipped bit without a word. We read safetensors, and foreign state dicts
(.pt, .pth) as far as they are plain tensors. What a file is, its first bytes say, not its name.
"""

from __future__ import annotations

import hashlib
import json
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepclust import files
from deepclust.errors import CheckpointError

HEADER = "deepclust"
WRAPPERS = ("state_dict", "model_state_dict", "model")
PICKLE_HINT = "save its weights alone, as safetensors or with torch.save(model.state_dict(), ...)"


def save(path: Path, tensors: Mapping[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and a header of plain values (text, numbers, lists) as safetensors.

    Raises OutputError if the place is full or not writable; what was there then stays.
    """
    from safetensors.torch import save as serialise

    own = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    text = json.dumps(files.plain(header), sort_keys=True, allow_nan=False)
    # One entry, because safetensors writes several in no fixed order, and files must repeat.
    metadata = {HEADER: f"{_fingerprint(own, text)} {text}"}
    files.write_bytes(path, serialise(own, metadata=metadata))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of weights: its tensors by name, on the CPU, and our header.

    A foreign file has no header: {}.
    Wrappers such as {"state_dict": ...} and the prefix "module." of a state dict are taken off.
    Raises CheckpointError for anything that is damaged, foreign, not plain tensors or not finite.
    """
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, not a file of weights")
    try:
        with path.open("rb") as file:
            start = file.read(9)
        if start[:2] == b"PK" or start[:1] == b"\x80":
            tensors, header = _state_dict(path), {}
        elif start[8:] == b"{":
            tensors, header = _safetensors(path)
        else:
            raise CheckpointError(
                f"{path} is {'not a file of weights' if start else 'empty'}",
                hint="weights are read from .safetensors files, and from state dicts (.pt, .pth)",
            )
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    if not tensors:
        raise CheckpointError(f"{path} holds no weights")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor.float()).all():
            raise CheckpointError(
                f"{path}: {name} holds NaN or infinite values",
                hint="the training that wrote this file had diverged; take an earlier checkpoint",
            )
    return tensors, header


def fit(module: nn.Module, tensors: Mapping[str, Tensor], *, path: Path) -> None:
    """Put `tensors` into `module`, all of them and nothing else.

    path: where they came from, for the message.
    Raises CheckpointError that names the first of what is missing, extra or of another shape.
    """
    own = module.state_dict()
    # State dicts from before torch 0.4.1 have no such counters, and nothing of ours reads them.
    given = {n: t for n, t in own.items() if n.endswith("num_batches_tracked")} | dict(tensors)
    both = [name for name in own if name in given]
    wrong = [
        f"{name} is {_shape(given[name])} instead of {_shape(own[name])}"
        for name in both
        if given[name].shape != own[name].shape
        or given[name].is_floating_point() != own[name].is_floating_point()
    ]
    found = {
        "missing": [name for name in own if name not in given],
        "extra": [name for name in given if name not in own],
        "of another shape": wrong,
    }
    faults = [f"{_first(names)} {kind}" for kind, names in found.items() if names]
    if faults:
        raise CheckpointError(
            f"{path} does not fit this network: {'; '.join(faults)}",
            hint="name the encoder and the sizes that these weights were made with",
        )
    module.load_state_dict(given)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    try:
        with path.open("rb") as file:
            state = hashlib.sha256()
            while block := file.read(1 << 20):
                state.update(block)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    return state.hexdigest()


def _safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            # The library maps the file; a copy of our own outlives the file and its changes.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        digest, _, text = metadata.get(HEADER, " {}").partition(" ")
        header = json.loads(text)
        if not isinstance(header, dict):
            raise ValueError("the header is not a table")
    except (SafetensorError, ValueError, RuntimeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: it does not read as safetensors") from error
    if HEADER in metadata and _fingerprint(tensors, text) != digest:
        raise CheckpointError(
            f"{path} is damaged: its content does not match its digest",
            hint="it was changed after it was written; take another copy, or train again",
        )
    return tensors, header


def _state_dict(path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    records = _stored_sizes(path) if zipfile.is_zipfile(path) else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged file raises almost anything, even KeyError(101); and torch's own text for a
        # pickle that would run code advises to switch the protection off.
        raise CheckpointError(
            f"{path} is damaged, or holds more than plain tensors; nothing in it was run",
            hint=PICKLE_HINT,
        ) from error
    for wrapper in WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CheckpointError(f"{path} holds no table of tensors by name", hint=PICKLE_HINT)
    tensors = {name: item.detach() for name, item in found.items() if isinstance(item, Tensor)}
    for name, tensor in tensors.items():
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        # A few bytes can claim any shape by strides of zero, or a storage larger than its record.
        if not plain or tensor.is_quantized or tensor.numel() * tensor.element_size() > size:
            raise CheckpointError(f"{path}: {name} is not a plain tensor")
        if records is not None and tensor.untyped_storage().nbytes() not in records:
            raise CheckpointError(f"{path} is damaged: {name} is cut")
    if tensors and all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def _stored_sizes(path: Path) -> set[int]:
    """Sizes of a torch archive's records. torch stores them as they are: packed ones are a bomb."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is damaged") from error
    packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if packed or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise CheckpointError(f"{path} is a packed archive, not a file of weights")
    return {entry.file_size for entry in entries}


def _fingerprint(tensors: Mapping[str, Tensor], text: str) -> str:
    state = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        state.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def _shape(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {'×'.join(map(str, tensor.shape)) or 'scalar'}"


def _first(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
