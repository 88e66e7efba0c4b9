"""The settings of a run: what they are, their defaults, and how a person gives them.

defaults < view preset and the method's recipe < `--config FILE.toml` < flags < `--set a.b=value`.
An unknown key is an error that names the nearest known one. The settings in force are written
to the run as `config.toml` and can be given back as `--config`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError

from deepclust.errors import UsageError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Data(Section):
    """Which pictures are read, and how."""

    follow_links: bool = Field(False, description="Follow links that leave the folder.")
    fit: Literal["auto", "stretch", "pad", "crop"] = Field(
        "auto", description="How a picture becomes a square; auto pads transparent ones."
    )
    max_pixels: int = Field(89_478_485, gt=0, description="Larger pictures are skipped.")


class Encoder(Section):
    """The network under the method's heads."""

    name: str = Field("auto", description="resnet8, resnet18-small, lite0, any timm name.")
    weights: str = Field("auto", description="none, packaged, hub, or a file.")
    image_size: int | None = Field(
        None, ge=8, le=1024, description="Side in pixels that the encoder sees."
    )
    train: Literal["auto", "all", "last", "none"] = Field(
        "auto", description="Which part learns; none works on cached features."
    )


class Views(Section):
    """How a picture is changed to make a view of it. All probabilities are per view."""

    preset: str = Field("auto", description="Where the values below start from.")
    crop_min: float = Field(0.2, gt=0, le=1, description="Least share of the area kept.")
    crop_max: float = Field(1.0, gt=0, le=1, description="Largest share of the area kept.")
    crop_ratio: float = Field(4 / 3, ge=1, description="Largest side ratio of the crop.")
    flip: bool = Field(True, description="Mirror left and right, half of the time.")
    flip_vertical: bool = Field(False, description="Mirror top and bottom, half of the time.")
    rotation: float = Field(0.0, ge=0, le=180, description="Largest turn in degrees.")
    shear: float = Field(0.0, ge=0, le=1, description="Largest slant, as italics; 0.3 is 17°.")
    jitter: float = Field(0.8, ge=0, le=1, description="Probability of a change of colour.")
    brightness: float = Field(0.4, ge=0, le=1, description="Largest relative change.")
    contrast: float = Field(0.4, ge=0, le=1, description="Largest relative change.")
    saturation: float = Field(0.4, ge=0, le=1, description="Largest relative change.")
    hue: float = Field(0.1, ge=0, le=0.5, description="Largest turn, in turns of the wheel.")
    tint: float = Field(0.0, ge=0, le=1, description="Largest shift of each channel, of its range.")
    grey: float = Field(0.2, ge=0, le=1, description="Probability of losing all colour.")
    blur: float = Field(0.0, ge=0, le=1, description="Probability of a Gaussian blur.")
    exact: bool = Field(False, description="The papers' order of steps; slower by far.")
    cached: int = Field(
        4, ge=0, le=64, description="Views of each picture with a frozen encoder; 0 is the fastest."
    )


# The papers' views, and kinder ones for pictures that those would spoil.
PRESETS: dict[str, dict[str, Any]] = {
    "cc": {"crop_min": 0.08},
    "cc-strong": {
        "crop_min": 0.08, "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2,
        "blur": 0.5,
    },
    "pcl": {"blur": 0.5},
    "mild": {"crop_min": 0.5},
    "letters": {
        "crop_min": 0.4, "flip": False, "rotation": 12.0, "shear": 0.3, "saturation": 0.0,
        "hue": 0.0, "grey": 0.0, "tint": 0.3,
    },
    "texture": {"flip_vertical": True, "rotation": 180.0},
}  # fmt: skip


class Train(Section):
    """How the network learns."""

    epochs: int | None = Field(None, ge=1, le=100_000, description="Passes over all pictures.")
    batch_size: int = Field(256, ge=2, le=65_536, description="Pictures in a step.")
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adam", description="How a step is made.")
    lr: float = Field(3e-4, gt=0, description="Learning rate at its height.")
    weight_decay: float = Field(0.0, ge=0, description="Pull of the weights to zero.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Of SGD.")
    schedule: Literal["constant", "cosine", "steps"] = Field(
        "constant", description="steps: a tenth at 60 % and at 80 % of the way."
    )
    warmup_epochs: float = Field(0.0, ge=0, description="Epochs of rising learning rate.")
    precision: Literal["auto", "float32", "bf16"] = Field(
        "auto", description="Of the encoder; losses are always float32 or wider."
    )


def _defaults(kind: type[Section]) -> Any:
    return Field(default_factory=lambda: kind.model_validate({}))


class Settings(Section):
    """Everything that decides what a run computes."""

    method: str = Field("cc", description="Name of the method; `method.name` in a file.")
    k: int | None = Field(None, ge=2, description="Clusters, for methods that train with them.")
    seed: int = Field(0, ge=0, lt=2**32, description="Of everything that is drawn at random.")
    data: Data = _defaults(Data)
    encoder: Encoder = _defaults(Encoder)
    views: Views = _defaults(Views)
    train: Train = _defaults(Train)
    options: SerializeAsAny[Section] = Field(
        Section(), description="The method's own settings; `method.*` in a file."
    )


def settings(options: type[Section], layers: Iterable[Mapping[str, Any]]) -> Settings:
    """Merge layers of settings, later ones first, and check every value.

    options: the settings class of the method. Raises UsageError that names the key and its range.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, layer)
    own = merged.pop("method", {})
    if not isinstance(own, dict):
        raise UsageError("method is a section: its name is method.name")
    name = own.pop("name", Settings.model_fields["method"].default)
    try:
        return Settings(**merged, method=name, options=options(**own))
    except ValidationError as error:
        raise _usage(error, options) from error


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            inner = into.setdefault(key, {})
            if not isinstance(inner, dict):
                raise UsageError(f"{key} is a value, not a section")
            _merge(inner, value)
        else:
            into[key] = value


def _usage(error: ValidationError, options: type[Section]) -> UsageError:
    """Say what pydantic found in one line: the key, the value, what is wanted."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    if error.title == options.__name__:
        place = ["method", *place]
    name = ".".join(place)
    if first["type"] == "extra_forbidden":
        return UsageError(f"unknown setting {name}", hint=nearest(name, known(options)))
    message = first["msg"].removeprefix("Input ")
    return UsageError(f"{name} = {first['input']!r}: {message}")


def known(options: type[Section]) -> list[str]:
    """Return the dotted names of all settings."""
    names = []
    for name, field in Settings.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section) and name != "options":
            names += [f"{name}.{key}" for key in inner.model_fields]
        elif name == "method":
            names += ["method.name", *(f"method.{key}" for key in options.model_fields)]
        elif name != "options":
            names.append(name)
    return names


def read_file(path: Path) -> dict[str, Any]:
    """Read a settings file. Raises UsageError if it is missing or not TOML."""
    try:
        return tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the settings file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def read_assignment(text: str) -> dict[str, Any]:
    """Read one `--set` value: `views.flip=false`, a line of TOML; bare words are text.

    Raises UsageError.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {text!r} is not of the form section.key=value")
    try:
        return tomllib.loads(f"{key}={value}")
    except tomllib.TOMLDecodeError:
        pass
    quoted = value.strip().replace("\\", "\\\\").replace('"', '\\"')
    try:
        return tomllib.loads(f'{key}="{quoted}"')
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--set {text!r}: {error}") from error


def to_toml(value: Settings) -> str:
    """Write settings as TOML that `read_file` reads back to the same settings."""
    import tomli_w

    table = value.model_dump(exclude_none=True)
    table["method"] = {"name": value.method, **table.pop("options")}
    return tomli_w.dumps(table)
