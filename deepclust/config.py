"""The settings of a run: what they are, their defaults, and how a person gives them.

defaults < the method's recipe < `--config FILE.toml` < flags < `--set section.key=value`.
An unknown key is an error that names the nearest known one. The settings in force are written
to the run as `config.toml` and can be given back as `--config`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepclust.errors import UsageError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
