"""Files of examples as people have them: utterances, addresses, reviews, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CITIES = [
    "Reno",
    "Dover",
    "Lyon",
    "Kyoto",
    "Accra",
    "Quito",
    "Oslo",
    "Perth",
    "Turin",
    "Fargo",
    "Cairo",
    "Salem",
    "Bern",
]
FOODS = ["ramen", "tacos", "pho", "pizza", "curry", "soup", "falafel", "sushi", "stew", "gumbo", "paella"]


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def utterances(count: int) -> list[dict[str, Any]]:
    """Commands whose answers have their keys in the order of speech; the intents are classes, the slots are copied."""
    found: list[dict[str, Any]] = []
    for i in range(count):
        city, food, word = CITIES[i % 13], FOODS[i % 11], f"{chr(97 + i // 26 % 26)}{chr(97 + i % 26)}"
        match i % 3:
            case 0:
                text, slots = f"{food} in {city} for {word}", {"dish": food, "city": city, "guest": word}
            case 1:
                text, slots = f"in {city} I want {food} with {word}", {"city": city, "dish": food, "guest": word}
            case _:
                text, slots = f"will it rain in {city} when {word} comes", {"city": city, "guest": word}
        found.append({"input": text, "output": {"intent": "weather" if i % 3 == 2 else "book", "slots": slots}})
    return found


def addresses() -> list[dict[str, Any]]:
    """Twelve addresses with parts that are null."""
    parts = [
        ("909 North Dupont Highway, Dover, DE 19901", "909", "North Dupont Highway", "Dover", "DE"),
        ("1120 CAPITAL OF TX HWY S # 3-300", "1120", "CAPITAL OF TX HWY S", None, None),
        ("28030 E C R 850 N", "28030", "E C R 850 N", None, None),
        ("1681 Church Street, Evanston", "1681", "Church Street", "Evanston", None),
        ("Old Mill Road, Reno, NV", None, "Old Mill Road", "Reno", "NV"),
        ("7 Rue Crémieux", "7", "Rue Crémieux", None, None),
        ("12 Quai d'Orsay", "12", "Quai d'Orsay", None, None),
        ("77 Sunset Strip, Salem, OR", "77", "Sunset Strip", "Salem", "OR"),
        ("1 Loop Way, Fargo, ND", "1", "Loop Way", "Fargo", "ND"),
        ("Pier 39, Bern", None, "Pier 39", "Bern", None),
        ("4 Pine Ct", "4", "Pine Ct", None, None),
        ("221B Baker Street", "221B", "Baker Street", None, None),
    ]
    names = ("number", "street", "city", "state")
    return [{"input": text, "output": dict(zip(names, values, strict=True))} for text, *values in parts]
