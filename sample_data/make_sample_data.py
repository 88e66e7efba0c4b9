"""Make the sample pictures and their labels out of the Noto Emoji pictures.

    npm pack emoji-datasource-google@16.0.0
    tar xzf emoji-datasource-google-16.0.0.tgz
    python make_sample_data.py package

Writes images/ and labels.csv beside this file, the same bytes each time with the same Pillow.
Groups are chosen so that a person sees them: members that look like nothing else in their group
are left out. The pictures lie in one folder, so that folders do not give a group away.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
# Group: the subcategories it is taken from, how many pictures at most, and what is left out.
GROUPS = {
    "animal": (
        ["animal-mammal"],
        60,
        "pig_nose feet bat moose boar",
    ),
    "button": (
        ["arrow", "av-symbol", "keycap", "alphanum"],
        60,
        "low_brightness high_brightness vibration_mode capital_abcd abcd 1234 symbols abc m "
        "congratulations secret accept ideograph_advantage koko sa u7121 u6307 u7981 u7a7a u5408 "
        "u6e80 u6709 u6708 u7533 u5272 u55b6 parking information_source",
    ),
    "clock": (
        ["time"],
        24,
        "hourglass hourglass_flowing_sand watch alarm_clock stopwatch timer_clock "
        "mantelpiece_clock",
    ),
    "face": (
        [
            "face-smiling",
            "face-affection",
            "face-tongue",
            "face-neutral-skeptical",
            "face-sleepy",
            "face-concerned",
        ],
        60,
        "melting_face rolling_on_the_floor_laughing dotted_line_face face_in_clouds shaking_face "
        "head_shaking_horizontally head_shaking_vertically money_mouth_face yawning_face "
        "smiling_face_with_3_hearts lying_face",
    ),
    "flag": (["country-flag"], 60, "flag-np flag-ch flag-va"),
    "fruit": (["food-fruit", "food-vegetable"], 40, ""),
    "hand": (
        [
            "hand-fingers-open",
            "hand-fingers-partial",
            "hand-single-finger",
            "hand-fingers-closed",
            "hands",
        ],
        40,
        "middle_finger",
    ),
    "heart": (["heart"], 24, "love_letter"),
    "person": (
        ["person", "person-role"],
        60,
        "baby breast-feeding woman_feeding_baby man_feeding_baby person_feeding_baby "
        "pregnant_woman pregnant_man pregnant_person",
    ),
    "vehicle": (
        ["transport-ground", "transport-water", "transport-air"],
        60,
        "metro busstop motorway railway_track oil_drum fuelpump wheel rotating_light "
        "octagonal_sign traffic_light vertical_traffic_light construction anchor ring_buoy "
        "parachute seat satellite skateboard roller_skate motorized_wheelchair manual_wheelchair "
        "rocket flying_saucer",
    ),
}
RENAMED = {"+1": "thumbs_up", "-1": "thumbs_down"}


def choose(emoji: list[dict], group: str) -> list[dict]:
    """Return the members of a group, spread evenly over all that could be taken."""
    subcategories, most, without = GROUPS[group]
    found = [
        one
        for one in emoji
        if one["subcategory"] in subcategories
        and one["has_img_google"]
        and one["short_name"] not in without.split()
    ]
    found.sort(key=lambda one: one["sort_order"])
    count = min(most, len(found))
    return [found[i * len(found) // count] for i in range(count)]


def main(package: Path) -> None:
    emoji = json.loads((package / "emoji.json").read_text(encoding="utf-8"))
    images = HERE / "images"
    images.mkdir(exist_ok=True)
    for old in images.glob("*.png"):
        old.unlink()
    rows = []
    for group in GROUPS:
        for one in choose(emoji, group):
            name = RENAMED.get(one["short_name"], one["short_name"]).lower()
            name = re.sub(r"[^a-z0-9]+", "_", name) + ".png"
            with Image.open(package / "img" / "google" / "64" / one["image"]) as picture:
                picture.convert("RGBA").save(images / name, optimize=True)
            rows.append((name, group))
    assert len({name for name, _ in rows}) == len(rows), "two pictures share a name"
    with (HERE / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("file_name", "label"))
        table.writerows(sorted(rows))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
