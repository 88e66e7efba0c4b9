"""`views.py` on a GPU: the same drawn parameters, applied to a whole batch where it will be used.

One resampling with grid_sample for crop, turn and flip, the same colour matrix, and a Gaussian
blur, all in float32. The tests run it on the CPU against `views.apply`; they differ by rounding
to whole levels and by OpenCV's ways of enlarging and blurring.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from deepclust.data.views import BLUE, BLUR_SIDE, GREEN, RED, Drawn


def apply(squares: Tensor, drawn: Drawn, index: np.ndarray, side: int) -> Tensor:
    """Make the drawn views of some pictures on the device that holds them.

    squares: (n, S, S, 3) uint8. index: (n,) int64, their rows in `drawn`.
    Returns (n, 3, side, side) float32 in [0, 1], channels last in memory.
    """
    device = squares.device

    def there(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(device)

    pictures = squares.permute(0, 3, 1, 2).float()
    grid = F.affine_grid(there(_places(drawn, index)), [len(index), 3, side, side], False)
    pictures = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    grey = pictures.new_tensor([RED, GREEN, BLUE])
    mean = pictures.mean(dim=(2, 3)) @ grey
    shift = there(drawn.lift[index])[:, None] * mean[:, None] + there(drawn.tint[index])
    pictures = torch.einsum("nij,njhw->nihw", there(drawn.colour[index]), pictures)
    pictures = (pictures + shift[:, :, None, None]).clamp_(0, 255)
    pictures = _blur(pictures, there(drawn.sigma[index] * side / BLUR_SIDE))
    return (pictures / 255).contiguous(memory_format=torch.channels_last)


def _places(drawn: Drawn, index: np.ndarray) -> np.ndarray:
    """Return (n, 2, 3), from a place in the view to one in the square, both in -1..1."""
    box, angle = drawn.box[index], np.deg2rad(drawn.angle[index].astype(np.float64))
    cos, sin, slant = np.cos(angle), np.sin(angle), drawn.slant[index]
    # Turn · slant · scale, with the mirror in the scale.
    scale = box[:, 2:] * np.where(drawn.flip[index], -1, 1)
    turn = np.stack(
        [np.stack([cos, cos * slant - sin], axis=1), np.stack([sin, sin * slant + cos], axis=1)],
        axis=1,
    )
    middle = 2 * box[:, :2] + box[:, 2:] - 1
    return np.concatenate([turn * scale[:, None], middle[:, :, None]], axis=2)


def _blur(pictures: Tensor, sigma: Tensor) -> Tensor:
    """Blur each of n pictures with its own σ; those of 0.1 pixels or less stay as they are."""
    blurred = torch.nonzero(sigma > 0.1).flatten()
    if len(blurred) == 0:
        return pictures
    chosen, own = pictures[blurred], sigma[blurred]
    reach = max(1, min(int(np.ceil(3 * float(own.max()))), pictures.shape[2] - 1))
    steps = torch.arange(-reach, reach + 1, device=pictures.device)
    kernel = torch.exp(-0.5 * (steps / own[:, None]).square())
    kernel = (kernel / kernel.sum(dim=1, keepdim=True)).repeat_interleave(3, dim=0)
    n, channels, height, width = chosen.shape
    flat = F.pad(chosen, (reach,) * 4, mode="reflect").reshape(1, n * channels, *(
        height + 2 * reach, width + 2 * reach,
    ))  # fmt: skip
    flat = F.conv2d(flat, kernel[:, None, None, :], groups=n * channels)
    flat = F.conv2d(flat, kernel[:, None, :, None], groups=n * channels)
    return pictures.index_copy(0, blurred, flat.reshape(chosen.shape))
