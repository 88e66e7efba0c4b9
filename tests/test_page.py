"""The page of a clustering: what it says, what it may never do, and how large it may be."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from deepclust import files
from deepclust.data.images import ImageFile, find_images
from deepclust.data.labels import Labels
from deepclust.data.store import load_pixels, store_side
from deepclust.progress import Progress
from deepclust.report import contents, curves, layout, make, nuisance, page, sprites
from deepclust.run import Run

GOLDEN = Path(__file__).parent / "golden" / "info_diagnostics.json"
HOSTILE = "<img src=x onerror=alert(1)>.png"


class Told(Progress):
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


def a_run(folder: Path, names: list[str], k: int = 3, side: int = 12) -> tuple[Run, Path]:
    """A run with pictures of k colours, each a cluster."""
    images = folder / "photos"
    rng = np.random.default_rng(0)
    label = np.arange(len(names)) % k
    for name, c in zip(names, label):
        pixels = np.full((side, side * 2, 3), 40 + 180 * c // max(k - 1, 1), np.uint8)
        pixels[..., c % 3] = 250
        (images / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(images / name, "PNG")
    run = Run.create(folder / "run")
    files.write_text(run.path / "config.toml", "")
    files.write_csv(run.path / "images.csv", ["file_name"], [[files.path_cell(n)] for n in names])
    files.write_csv(run.path / "skipped.csv", ["file_name", "reason"], [["x.png", "truncated"]])
    x = np.eye(k, 8)[label] + 0.05 * rng.standard_normal((len(names), 8))
    files.write_array(run.path / "embeddings.npy", x.astype(np.float32))
    counts = {"root": str(images.resolve()), "used": len(names), "skipped": 1}
    run.update(images=counts, settings={"method": "none", "k": None, "seed": 0})
    where = run.path / "clusters" / "kmeans-3"
    files.make_folder(where)
    rows = [
        (files.path_cell(n), int(c), 0.5 + 0.01 * i) for i, (n, c) in enumerate(zip(names, label))
    ]
    files.write_csv(where / "assignments.csv", ["file_name", "cluster", "confidence"], rows)
    files.write_json(where / "clusters.json", {"algorithm": "kmeans", "seed": 0, "k_found": k})
    return Run.open(run.path), where


def plain_names(n: int) -> list[str]:
    return [f"p{i:03}.png" for i in range(n)]


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {f"{tag}.{name}" for name, _ in attrs}


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def test_the_page_says_first_what_came_out(tmp_path):
    run, folder = a_run(tmp_path, plain_names(12))
    text = page.write(run, folder).read_text()
    assert "<h1>12 pictures in 3 clusters; the largest holds 33%.</h1>" in text
    assert "left out of the folder: 1 × truncated" in text
    assert str(tmp_path) not in text  # it is made to be sent


def test_the_page_may_load_and_run_nothing_but_its_own_script(tmp_path):
    run, folder = a_run(tmp_path, plain_names(12))
    text = page.write(run, folder).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    script = re.search(r"<script>(.*?)</script>", text, re.S)
    assert policy
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policy[1].startswith("default-src 'none'; img-src data:;")
    assert f"script-src 'sha256-{digest}'" in policy[1]
    outside = re.findall(
        r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]+)", text.replace(script[1], "")
    )
    assert {place for place in outside if not place.startswith(("#", "data:"))} == set()


def test_hostile_names_labels_and_folders_add_no_element(tmp_path):
    names = [
        HOSTILE,
        "</script><script>alert(1).png",
        "a&amp;\u2028b\u202egnp.png",
        '"onload=x.png',
    ]
    names = [*names, "sub 'x'/=1+1.png", "-->.png", "{{ 7*7 }}.png", "q.png", "r.png"]
    plain = a_run(tmp_path / "plain", plain_names(9))
    odd = a_run(tmp_path / "odd", [n.replace("/script", "∕script") for n in names])
    bad = ["<script>alert(1)</script>", "<b>x</b>", "z"]
    texts = []
    for (run, folder), classes in ((plain, ["x", "y", "z"]), (odd, bad)):
        labels = Labels([classes[i % 3] for i in range(9)], classes)
        report = make(np.arange(9) % 3, labels, title=folder.name, rounds=10)
        texts.append(page.write(run, folder, report=report, labels=labels).read_text())
    usual, hostile = (Elements(text) for text in texts)
    assert hostile.tags == usual.tags
    assert hostile.attributes == usual.attributes
    assert data_of(texts[1])["names"] == odd[0].names
    assert "7*7" in texts[1]
    assert "\u202e" not in texts[1]


def test_pictures_that_are_gone_cost_their_thumbnail_and_no_more(tmp_path):
    run, folder = a_run(tmp_path, plain_names(12))
    (tmp_path / "photos" / "p003.png").unlink()
    told = Told()
    assert page.write(run, folder, progress=told)
    assert told.warned == ["1 pictures of report.html are grey: they could not be read"]
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    assert page.write(run, folder)


def test_a_page_that_cannot_be_made_is_a_warning_and_leaves_no_old_one(tmp_path):
    run, folder = a_run(tmp_path, plain_names(6))
    page.write(run, folder)
    (run.path / "embeddings.npy").write_bytes(b"rubbish")
    told = Told()
    assert page.write(run, folder, progress=told) is None
    assert told.warned[0].startswith("no report.html: ")
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_handful_of_pictures_has_a_page(tmp_path, n):
    run, folder = a_run(tmp_path, plain_names(n), k=n)
    assert page.write(run, folder)


def test_pictures_in_no_cluster_have_a_card_of_their_own(tmp_path):
    run, folder = a_run(tmp_path, plain_names(9))
    table = (folder / "assignments.csv").read_text().replace(",2,", ",-1,")
    (folder / "assignments.csv").write_text(table)
    text = page.write(run, folder).read_text()
    assert "In no cluster" in text
    assert [group["id"] for group in data_of(text)["groups"]] == [0, 1, -1]


def test_thumbnails_keep_their_shape_and_nothing_of_the_metadata(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "SECRET-PLACE"
    Image.new("RGB", (200, 100), "red").save(tmp_path / "a.jpg", exif=exif)
    found = find_images(tmp_path).files
    drawn = sprites.thumbnails(found, 64)
    assert drawn.shape.tolist() == [[1.0, 0.5]]
    assert drawn.size.tolist() == [[200, 100]]
    assert drawn.hue.tolist() == [0]  # red
    (uri,) = sprites.encode(drawn.sheets, 10**6)
    assert b"SECRET" not in base64.b64decode(uri.partition(",")[2])


def test_sheets_of_noise_are_coarser_until_they_fit():
    noise = np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    fine, coarse = sprites.encode([noise], 10**9), sprites.encode([noise], 20_000)
    assert len(coarse[0]) < len(fine[0])


def test_the_limits_are_those_we_promise():
    assert contents.limit(1) == contents.limit(300) == pytest.approx(2e6, abs=1)
    assert contents.limit(10_000) == pytest.approx(15e6, abs=1)
    assert contents.limit(10**6) == pytest.approx(25e6, abs=1)


def test_a_page_on_300_noisy_pictures_is_under_2_mb(tmp_path):
    names = plain_names(300)
    run, folder = a_run(tmp_path, names)
    rng = np.random.default_rng(0)
    for name in names:
        pixels = rng.integers(0, 255, (140, 140, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name, compress_level=1)
    assert page.write(run, folder).stat().st_size < 2_000_000


def test_a_sample_keeps_every_cluster_and_the_ends_of_each():
    cluster = np.repeat([0, 1, 2], [9000, 990, 10])
    sure = np.linspace(1, 0, 10_000)
    rows = contents.sample(cluster, sure, 600)
    assert len(rows) <= 600
    assert np.bincount(cluster[rows]).tolist() == [370, 129, 10]
    for first, last in ((0, 8999), (9000, 9989)):
        assert first in rows
        assert last in rows


def test_the_map_is_the_two_main_axes_whatever_the_sign():
    # Points on a cross: the long arm becomes x, the short one y.
    x = np.array([[0, 0, -4], [0, 0, 4], [1, 0, 0], [-1, 0, 0]], np.float32)
    place, how = layout.plane(x)
    assert how == "PCA"
    np.testing.assert_allclose(place, [[0, 0.5], [1, 0.5], [0.5, 0.625], [0.5, 0.375]], atol=1e-12)
    assert np.array_equal(layout.plane(np.ones((3, 4), np.float32))[0], np.full((3, 2), 0.5))


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["cases"], ids=lambda c: c["name"])
def test_traits_equal_the_published_diagnostics(case):
    z, t = (np.array(case["inputs"][key]) for key in "ZT")
    words, code = np.unique(t, return_inverse=True)
    trait = nuisance.compare("t", z, code, [str(w) for w in words], {})
    assert trait.information == pytest.approx(case["outputs"]["I_ZT"], abs=1e-9)
    assert trait.left == pytest.approx(case["outputs"]["H_Z_given_T"], abs=1e-9)


def test_clusters_that_follow_the_sub_folders_are_called_out(tmp_path):
    names = [f"{'abc'[i % 3]}/p{i}.png" for i in range(30)]
    run, folder = a_run(tmp_path, names)
    text = page.write(run, folder).read_text()
    assert "The sub-folder goes along with the clusters (AMI 1.00)" in text


def test_bins_hold_equal_numbers_together():
    code, words = nuisance.bins(np.array([1.0] * 6 + [2.0, 3.0]), "{:.0f}")
    assert len(set(code[:6])) == 1
    assert words[0] == "1"


def test_a_curve_carries_the_line_of_collapse():
    # Loss 3, gap 1: collapse at 4, the top of the drawing.
    lines = [{"loss_instance": 3.5, "instance_gap": 0.5}, {"loss_instance": 3.0, "instance_gap": 1}]
    (curve,) = curves.curves(lines)
    assert (curve.first, curve.last, curve.line) == ("3.5", "3", curves.PAD)
    assert curves.curves([{"loss": 1.0}]) == []


def test_a_picture_that_became_a_link_out_of_the_folder_is_not_drawn(tmp_path):
    run, folder = a_run(tmp_path, plain_names(6))
    secret = tmp_path / "secret.png"
    Image.new("RGB", (9, 9)).save(secret)
    (tmp_path / "photos" / "p002.png").unlink()
    (tmp_path / "photos" / "p002.png").symlink_to(secret)
    found = contents.gather(run, folder)
    assert found.drawn.seen.tolist() == [True, True, False, True, True, True]


def test_unseen_files_are_left_out_of_the_traits():
    drawn = sprites.thumbnails([None, None], 8)
    file: list[ImageFile | None] = [None, None]
    assert nuisance.traits(np.array([0, 1]), file, drawn, {}) == []


def stored_run(tmp_path: Path, kind: str, pixels: Image.Image) -> tuple[Run, Path]:
    """A run whose pictures were decoded before, and are unreadable but for their header now."""
    run, folder = a_run(tmp_path, [f"a{i}.{kind}" for i in range(3)])
    for name in run.names:
        pixels.save(tmp_path / "photos" / name)
    text = "[data]\nmax_pixels = 1000000\n[encoder]\nimage_size = 128\n"
    files.write_text(run.path / "config.toml", text)
    listing = find_images(run.image_root)
    load_pixels(listing, store_side(128), max_pixels=1_000_000, workers=0)
    return run, folder


def test_thumbnails_come_from_what_was_decoded_for_the_encoder(tmp_path, monkeypatch):
    run, folder = stored_run(tmp_path, "jpg", Image.new("RGB", (200, 100), "red"))
    monkeypatch.setattr(sprites, "read_image", None)  # nothing is decoded again
    drawn = contents.gather(run, folder).drawn
    assert drawn.shape.tolist() == [[1.0, 0.5]] * 3
    assert drawn.sheets[0][5, 5].tolist() == pytest.approx([254, 0, 0], abs=2)
    assert drawn.sheets[0][100, 5].tolist() == [255, 255, 255]


def test_a_picture_that_may_be_padded_is_decoded_again(tmp_path):
    run, folder = stored_run(tmp_path, "png", Image.new("RGBA", (200, 100), (255, 0, 0, 128)))
    drawn = contents.gather(run, folder).drawn
    assert drawn.shape.tolist() == [[1.0, 0.5]] * 3
    assert drawn.sheets[0][:60, :100].reshape(-1, 3).min(axis=0).tolist() == [255, 127, 127]


def test_pictures_on_cards_share_the_first_sheet_and_each_has_its_cell(tmp_path):
    run, folder = a_run(tmp_path, plain_names(40))
    found = contents.gather(run, folder)
    on_cards = {i for g in found.groups for i in (*g.near, *g.across, *g.edge)}
    assert sorted(found.drawn.cell.tolist()) == list(range(40))
    assert {int(found.drawn.cell[i]) for i in on_cards} == set(range(len(on_cards)))
    side, sheet = found.drawn.side, found.drawn.sheets[0]
    for i in range(40):
        row, column = divmod(int(found.drawn.cell[i]), sprites.COLUMNS)
        seen = sheet[row * side + 2, column * side + 2].argmax()
        assert seen == i % 3  # the colour of its cluster


class Umap:
    """Stands in for umap-learn: takes the same options, and lays rows on a line."""

    options: ClassVar[dict[str, object]] = {}

    def __init__(self, **options: object) -> None:
        Umap.options = options

    def fit_transform(self, x: np.ndarray) -> np.ndarray:
        return np.stack([np.arange(len(x)), np.zeros(len(x))], axis=1)


def test_the_map_is_by_umap_where_it_is_installed_and_the_page_says_so(tmp_path, monkeypatch):
    module = ModuleType("umap")
    module.UMAP = Umap  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "umap", module)
    few, folder = a_run(tmp_path / "few", plain_names(14))
    assert "PCA of the embedding" in page.write(few, folder).read_text()
    run, folder = a_run(tmp_path / "more", plain_names(15))
    assert "UMAP of the embedding" in page.write(run, folder).read_text()
    assert Umap.options["random_state"] == 0
    place, how = layout.plane(np.ones((15, 3), np.float32), seed=4)
    assert how == "UMAP"
    assert place[:, 0].tolist() == pytest.approx(np.linspace(0, 1, 15))
    assert Umap.options["random_state"] == 4


@pytest.mark.filterwarnings("ignore")
def test_umap_lays_the_same_map_twice():
    pytest.importorskip("umap", reason="umap-learn is not installed: a stand-in was tested")
    x = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    x[:20] += 6
    (first, how), (second, _) = layout.plane(x), layout.plane(x)
    assert how == "UMAP"
    assert np.array_equal(first, second)
    gap = np.linalg.norm(first[:20].mean(axis=0) - first[20:].mean(axis=0))
    assert gap > 0.3  # two groups stay two


def test_the_map_is_by_pca_without_umap(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    assert layout.plane(np.eye(20, 4, dtype=np.float32))[1] == "PCA"


def test_ends_of_a_curve_that_differ_a_little_are_shown_apart():
    (curve,) = curves.curves([{"loss": 2.94439}, {"loss": 2.94012}])
    assert (curve.first, curve.last) == ("2.944", "2.94")
    (curve,) = curves.curves([{"loss": 2.5}, {"loss": 2.5}])
    assert (curve.first, curve.last) == ("2.5", "2.5")
