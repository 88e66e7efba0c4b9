"""What no line of the package may do, read from its syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "deepclust"
MODULES = {"pickle", "cPickle", "_pickle", "joblib", "dill", "cloudpickle", "shelve", "marshal"}
PROCESSES = {"subprocess", "pty", "pexpect"}
CALLS = {
    "eval", "exec", "__import__", "os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv",
    "torch.hub.load", "torch.hub.load_state_dict_from_url", "torch.jit.load", "pandas.read_pickle",
    "yaml.load", "yaml.unsafe_load",
}  # fmt: skip
NETWORK = {"socket", "urllib.request", "requests", "http.client", "httpx", "aiohttp"}
DOWNLOADS = "nets/timm_models.py"  # the one place, for `--weights hub`
SWITCHES = {"MAX_IMAGE_PIXELS": None, "LOAD_TRUNCATED_IMAGES": True}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults(source: str) -> list[str]:
    """Return what a source does that it may not."""
    found = []
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            inner = [alias.name for alias in node.names]
            whole = inner if isinstance(node, ast.Import) else [node.module or ""]
            full = [f"{whole[0]}.{name}" for name in inner] if whole != inner else inner
            for name in {*whole, *full}:
                if name.split(".")[0] in MODULES | PROCESSES or name in NETWORK:
                    found.append(f"{line}: import {name}")
                if name == "torch.hub":
                    found.append(f"{line}: import {name}")
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            options = {keyword.arg: keyword.value for keyword in node.keywords}

            def says(key: str, value: bool, options: dict = options) -> bool:
                given = options.get(key)
                return isinstance(given, ast.Constant) and given.value is value

            if name in CALLS or (name.startswith("torch.hub") and name != "torch.hub.get_dir"):
                found.append(f"{line}: {name}()")
            if name.endswith("torch.load") and not says("weights_only", True):
                found.append(f"{line}: torch.load without weights_only=True")
            if name in ("np.load", "numpy.load") and not says("allow_pickle", False):
                found.append(f"{line}: np.load without allow_pickle=False")
            if "shell" in options and not says("shell", False):
                found.append(f"{line}: a shell")
            if name.endswith("Image.open") and "formats" not in options:
                found.append(f"{line}: Image.open without formats")
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name, value = dotted(target).split(".")[-1], node.value
                off = isinstance(value, ast.Constant) and value.value is SWITCHES.get(name, ...)
                if off:
                    found.append(f"{line}: {dotted(target)} =")
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_source_runs_what_a_stranger_wrote(path):
    found = faults(path.read_text(encoding="utf-8"))
    if path == PACKAGE / DOWNLOADS:
        found = [fault for fault in found if fault.split(" import ")[-1].split(".")[0] != "urllib"]
        found = [fault for fault in found if not fault.endswith("import socket")]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import joblib.memory", "eval('1')",
        "exec('1')", "import os\nos.system('x')", "import subprocess", "import urllib.request",
        "from urllib import request", "torch.load(p)", "torch.load(p, weights_only=False)",
        "np.load(p)", "np.load(p, allow_pickle=True)", "torch.hub.load('a', 'b')",
        "from torch import hub", "run('x', shell=True)", "Image.MAX_IMAGE_PIXELS = None",
        "Image.open(p)",
    ],
)  # fmt: skip
def test_what_is_forbidden_is_seen(source):
    assert faults(source)
