"""Files of weights: round trips, and what damage, foreign files and hostile pickles get."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from deepclust import files, weights
from deepclust.errors import CheckpointError

SMALL = {
    "w": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "empty": torch.zeros(0, 4),
}
MKDIR = b"\x80\x02cos\nmkdir\nX\x05\x00\x00\x00PWNED\x85R."
"""A pickle that makes a folder PWNED if it is ever run."""


def torch_file(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def archive(records: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packing) as file:
        for name, data in records.items():
            file.writestr(f"archive/{name}", data)
    return buffer.getvalue()


def records_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name.partition("/")[2]: file.read(name) for name in file.namelist()}


def test_tensors_and_header_come_back_as_they_were(tmp_path):
    header = {"encoder": "resnet8", "width": 256, "mean": [0.5, 0.25], "τ": 0.1}
    weights.save(tmp_path / "m.safetensors", SMALL, header)
    tensors, found = weights.load(tmp_path / "m.safetensors")
    assert found == header
    assert tensors.keys() == SMALL.keys()
    for name, tensor in SMALL.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_tied_and_strided_tensors_are_written_whole(tmp_path):
    w = torch.arange(6.0).reshape(2, 3)
    weights.save(tmp_path / "m.safetensors", {"a": w, "b": w, "t": w.T}, {})
    tensors, _ = weights.load(tmp_path / "m.safetensors")
    assert torch.equal(tensors["a"], tensors["b"])
    assert torch.equal(tensors["t"], w.T)


def test_saving_goes_through_the_one_writer(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(files, "write_bytes", lambda path, data: written.append(path))
    weights.save(tmp_path / "m.safetensors", SMALL, {})
    assert written == [tmp_path / "m.safetensors"]


@pytest.mark.parametrize("place", ["tensor", "header"])
def test_a_flipped_bit_is_noticed(tmp_path, place):
    path = tmp_path / "m.safetensors"
    weights.save(path, {"w": torch.ones(64)}, {"encoder": "resnet8"})
    data = bytearray(path.read_bytes())
    data[-100 if place == "tensor" else data.index(b"resnet8")] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        weights.load(path)


def test_a_safetensors_file_of_another_tool_has_no_header(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2)}, tmp_path / "other.safetensors")
    tensors, header = weights.load(tmp_path / "other.safetensors")
    assert header == {}
    assert torch.equal(tensors["w"], torch.ones(2))


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_state_dicts_come_out_of_their_wrappers(tmp_path, wrapper):
    state = {"module.w": torch.ones(2), "module.b": torch.zeros(2)}
    value = {wrapper: state, "epoch": 3} if wrapper else state
    (tmp_path / "m.pt").write_bytes(torch_file(value))
    tensors, header = weights.load(tmp_path / "m.pt")
    assert sorted(tensors) == ["b", "w"]
    assert header == {}


def test_a_state_dict_in_the_old_format_is_read(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    tensors, _ = weights.load(tmp_path / "old.pth")
    assert torch.equal(tensors["w"], torch.ones(2))


CUT = torch_file({"w": torch.ones(1000)})[:3000]
SAFE = struct.pack("<Q", 2) + b"{}"
HOSTILE = {
    "raw pickle": MKDIR,
    "pickle in a zip": archive({"data.pkl": MKDIR, "byteorder": b"little", "version": b"3\n"}),
    "wrapped pickle": archive({"data.pkl": MKDIR[:-1] + b"0}.", "version": b"3\n"}),
    "whole module": torch_file(nn.Linear(2, 2)),
    "truncated": CUT,
    "empty": b"",
    "text": b"hello\n",
    "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(50),
    "header of 2^60 bytes": struct.pack("<Q", 1 << 60) + b"{}",
    "no tensors": SAFE,
    "a number": torch_file(3),
    "a list": torch_file([torch.ones(2)]),
    "numbers as names": torch_file({1: torch.ones(2)}),
    "sparse": torch_file({"w": torch.eye(2).to_sparse()}),
    "a shape without data": torch_file({"w": torch.zeros(1).expand(1 << 40)}),
    "packed archive": archive(records_of(torch_file({"w": torch.ones(9)})), zipfile.ZIP_DEFLATED),
    "other archive": archive({"a.txt": b"hello"}),
    "not a number": torch_file({"w": torch.tensor([1.0, float("nan")])}),
    "infinite": torch_file({"w": torch.tensor([1.0, float("inf")], dtype=torch.float16)}),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_or_damaged_file_is_refused_and_never_run(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    for name in ("m.pt", "m.safetensors"):
        Path(name).write_bytes(HOSTILE[kind])
        with pytest.raises(CheckpointError) as caught:
            weights.load(Path(name))
        assert caught.value.exit_code == 4
        words = f"{caught.value.message} {caught.value.hint}"
        assert name in words
        assert "weights_only" not in words
        assert "\n" not in words
    assert not Path("PWNED").exists()


def test_a_record_shorter_than_its_tensor_is_refused(tmp_path):
    records = records_of(torch_file({"w": torch.ones(4)}))
    records["data/0"] = records["data/0"][:8]
    (tmp_path / "m.pt").write_bytes(archive(records))
    with pytest.raises(CheckpointError, match="damaged"):
        weights.load(tmp_path / "m.pt")


def test_a_whole_module_says_how_to_save_it(tmp_path):
    (tmp_path / "m.pt").write_bytes(HOSTILE["whole module"])
    with pytest.raises(CheckpointError) as caught:
        weights.load(tmp_path / "m.pt")
    assert "state_dict()" in (caught.value.hint or "")


@pytest.mark.parametrize("place", ["folder", "nowhere.pt"])
def test_a_folder_or_nothing_is_no_file_of_weights(tmp_path, place):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=place):
        weights.load(tmp_path / place)


def test_fit_fills_the_module():
    module = nn.Linear(3, 2)
    given = {"weight": torch.ones(2, 3, dtype=torch.float16), "bias": torch.zeros(2)}
    weights.fit(module, given, path=Path("m.pt"))
    assert torch.equal(module.weight, torch.ones(2, 3))


def test_fit_does_without_the_counters_of_batch_norm():
    module = nn.BatchNorm1d(2)
    given = {n: t for n, t in module.state_dict().items() if n != "num_batches_tracked"}
    weights.fit(module, given, path=Path("m.pt"))


def test_fit_names_the_first_three_of_each_fault():
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    before = module[2].weight.clone()
    given = {"2.weight": torch.ones(2, 5), "2.bias": torch.ones(2), "head": torch.ones(1)}
    with pytest.raises(CheckpointError) as caught:
        weights.fit(module, given, path=Path("m.pt"))
    message = caught.value.message
    assert "0.weight, 0.bias, 1.weight and 1 more missing" in message
    assert "head extra" in message
    assert "2.weight is float32 2×5 instead of float32 2×2" in message
    assert torch.equal(module[2].weight, before)


def test_digest_is_the_sha256_of_the_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    # FIPS 180-2, example B.1.
    assert weights.digest(tmp_path / "abc") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_the_same_weights_make_the_same_file(tmp_path):
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2)}
    for name in ("one", "two"):
        weights.save(tmp_path / name, tensors, {"kind": "model", "k": 3})
    files = {(tmp_path / name).read_bytes() for name in ("one", "two")}
    assert len(files) == 1
    assert files.pop().count(b"deepclust") == 1
