"""The page in a real browser, as a person uses it: Chromium without a window, without a network."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepclust.data.labels import Labels
from deepclust.files import read_csv
from deepclust.report import make, page
from tests.test_page import HOSTILE, a_run, plain_names

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1200,900",
)  # fmt: skip
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver here: the page was not opened"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page on thirty pictures, one of them with a name that tries to be markup."""
    names = [HOSTILE, *plain_names(29)]
    run, folder = a_run(tmp_path_factory.mktemp("page"), names)
    classes = ["cat", "<b>dog</b>", "owl"]
    labels = Labels([classes[i % 3] for i in range(30)], classes)
    report = make(np.arange(30) % 3, labels, title=folder.name, rounds=10)
    path = page.write(run, folder, report=report, labels=labels)
    assert path
    return path


@pytest.fixture
def opened(browser: Any, written: Path) -> Any:
    browser.get_log("performance")
    browser.get(written.as_uri())
    assert browser.execute_script("return document.documentElement.dataset.ready") == "yes"
    return browser


def texts(browser: Any, selector: str) -> list[str]:
    script = (
        "return [...document.querySelectorAll(arguments[0])].map(e => e.title || e.textContent)"
    )
    return browser.execute_script(script, selector)


def click(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def test_it_loads_nothing_and_complains_of_nothing(opened, written):
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
        and message["params"]["documentURL"] == written.as_uri()  # Chromium's own pages ask too
    ]
    assert {url for url in asked if not url.startswith("data:")} == {written.as_uri()}
    assert opened.get_log("browser") == []


def test_a_hostile_name_is_text_and_nothing_else(opened):
    assert opened.execute_script("return document.images.length") == 0
    click(opened, ".pic[data-i='0']")
    assert HOSTILE in texts(opened, "#detail h3")
    assert HOSTILE in texts(opened, "#list .pic")
    assert (
        opened.execute_script("return document.querySelectorAll('img, b:not(nav b)').length") == 0
    )
    assert opened.execute_script("return document.querySelectorAll('nav b').length") == 1


def test_a_cluster_opens_with_its_pictures_the_surest_first(opened):
    click(opened, ".card[data-g='1'] .open")
    assert texts(opened, "#heading")[0].startswith("Cluster 1 · 10 pictures")
    # Confidence grows with the row in these assignments.
    assert texts(opened, "#list .pic") == [f"p{i:03}.png" for i in range(27, -1, -3)]


def test_arrow_keys_walk_and_escape_closes(opened):
    from selenium.webdriver.common.keys import Keys

    click(opened, ".card[data-g='1'] .open")
    press(opened, Keys.ARROW_RIGHT)
    assert texts(opened, "#detail h3") == ["p024.png"]
    press(opened, Keys.ESCAPE)
    assert opened.execute_script("return document.getElementById('viewer').open") is False


def test_the_search_filters_by_name_label_and_cluster(opened):
    press(opened, "/")
    press(opened, "p01")
    assert len(texts(opened, "#hits .pic")) == 10
    assert texts(opened, "#count") == ["10 of 30 pictures"]
    press(opened, " owl")
    assert texts(opened, "#hits .pic") == ["p010.png", "p013.png", "p016.png", "p019.png"]
    opened.execute_script(
        "const s = document.getElementById('search'); s.value = '';"
        "s.dispatchEvent(new Event('input'))"
    )
    assert opened.execute_script("return document.getElementById('cards').hidden") is False


def test_a_lasso_lists_what_it_holds(opened):
    from selenium.webdriver import ActionChains

    plot = opened.find_element("id", "plot")
    opened.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot
    )
    x, y = plot.size["width"] // 2 - 6, plot.size["height"] // 2 - 6
    hand = ActionChains(opened, duration=20).move_to_element_with_offset(plot, -x, -y)
    hand.click_and_hold()
    for dx, dy in ((2 * x, 0), (0, y), (0, y), (-x, 0), (-x, 0), (0, -y)):
        hand.move_by_offset(dx, dy)
    hand.release().perform()
    assert texts(opened, "#lassoed")[0].startswith("30 pictures inside")
    assert len(texts(opened, "#picked .pic")) == 30


def test_a_cell_of_the_table_shows_its_pictures(opened):
    click(opened, ".heat button")
    assert len(texts(opened, "#list .pic")) == 10
    assert opened.get_log("browser") == []


def test_edit_mode_saves_a_file_that_the_command_line_takes(opened, tmp_path, cli):
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    opened.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    click(opened, "#edit")
    for group in (0, 1):
        click(opened, f".card[data-g='{group}'] h3 .open")
    click(opened, "#merge")
    click(opened, ".card[data-g='2'] h3 .open")
    opened.execute_script("document.getElementById('name').value = 'a \"<b>cat</b>\"'")
    click(opened, "#rename")
    click(opened, ".pic[data-i='0']")
    assert texts(opened, "#chosen") == ["1 picture"]
    opened.execute_script("document.getElementById('target').value = '2'")
    click(opened, "#move")
    assert opened.execute_script("return document.getElementById('viewer').open") is False
    click(opened, "#save")
    file = tmp_path / "edits.toml"
    for _ in range(100):
        if file.exists():
            break
        time.sleep(0.05)
    assert opened.get_log("browser") == []
    run, base = a_run(tmp_path, [HOSTILE, *plain_names(29)])
    ran = cli("cluster", run.path, "--k", 3, "--threads", 1, "--edits", file)
    assert ran.exit_code == 0, ran.stderr
    assert "not done" not in ran.stderr
    rows = read_csv(base.with_name("kmeans-3-edited") / "assignments.csv")
    named = [row["file_name"] for row in rows if row["name"] == 'a "<b>cat</b>"']
    assert sorted(named) == sorted([HOSTILE, *(f"p{i:03}.png" for i in range(1, 29, 3))])
