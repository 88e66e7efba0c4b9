"""The model as one ONNX file, checked on the run's own pictures before it is handed over."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import torch

from deepclust import files
from deepclust.data.images import locate
from deepclust.data.reader import Unreadable, read_square
from deepclust.errors import DataError, OutputError
from deepclust.exporters import Item, Job, need
from deepclust.exporters.models import Graph, graph

CHECKED = 8  # pictures
WORST = 1e-3
OUTPUTS = ("embedding", "probabilities")


def onnx(job: Job) -> list[Item]:
    """model.onnx: images (n, 3, S, S) in [0, 1] → embedding (n, d) and, of a head, (n, k).

    n is free. model.json beside it says what goes in and out, and how far the file was from
    torch on pictures of the run. Raises OutputError if that is more than 1e-3.
    """
    for module in ("onnx", "onnxscript", "onnxruntime"):
        need(module, "onnx")
    made = graph(job.run)
    images = _pictures(job, made.encoder.image_size)
    with torch.no_grad():
        expected = [output.numpy() for output in made(torch.from_numpy(images))]
    names: list[str] = [*OUTPUTS[: len(expected)]]
    data = _convert(made, images, names)
    found = _run(data, images)
    # One picture alone must do, too: a batch size that was frozen into the file shows here.
    found_one = _run(data, images[:1])
    worst = max(float(np.abs(a - b).max()) for a, b in zip(expected, found))
    worst = max(worst, *(float(np.abs(a[:1] - b).max()) for a, b in zip(expected, found_one)))
    if not worst <= WORST:
        raise OutputError(f"the ONNX file differs from torch by {worst:.2g}, so it is not written")
    job.progress.say(f"onnx: at most {worst:.1e} from torch on {len(images)} pictures")
    about = _about(made, names, expected, worst, len(images))
    return [
        Item("model.onnx", lambda path: files.write_bytes(path, data)),
        Item("model.json", lambda path: files.write_json(path, about)),
    ]


def _pictures(job: Job, side: int) -> np.ndarray:
    """Return some pictures of the run, spread over it: (n, 3, side, side) float32 in [0, 1]."""
    names = job.run.names
    squares = []
    for i in np.unique(np.linspace(0, len(names) - 1, CHECKED).astype(int)):
        try:
            squares.append(read_square(locate(job.run.image_root, names[i]), side))
        except (Unreadable, OSError):
            continue
    if not squares:
        raise DataError(
            f"no picture of the run is left in {job.run.image_root} to check the file on"
        )
    return np.stack(squares).transpose(0, 3, 1, 2).astype(np.float32) / 255


def _convert(made: Graph, images: np.ndarray, names: list[str]) -> bytes:
    # Two rows, since torch takes a size of one for a constant.
    example = torch.from_numpy(np.concatenate([images, images])[:2])
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                made,
                (example,),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=names,
                dynamic_shapes={"images": {0: torch.export.Dim("n", min=1, max=65536)}},
            )
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
    return program.model_proto.SerializeToString()


def _run(data: bytes, images: np.ndarray) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return [np.asarray(output) for output in session.run(None, {"images": images})]


def _about(
    made: Graph, names: list[str], expected: list[np.ndarray], worst: float, checked: int
) -> dict[str, Any]:
    side = made.encoder.image_size
    return {
        "input": {
            "name": "images",
            "shape": ["n", 3, side, side],
            "dtype": "float32",
            "values": "RGB in [0, 1], resized to the square with antialiased bicubic; the file"
            " normalises by itself",
        },
        "outputs": {
            name: {"shape": ["n", output.shape[1]], "dtype": "float32"}
            for name, output in zip(names, expected)
        },
        "encoder": made.encoder.name,
        "of_one_picture_alone": "without the views and the smoothing of the run's own embedding"
        if made.layers
        else "the run's own embedding",
        "checked": {"pictures": checked, "max_abs_difference_to_torch": worst},
    }
