"""Phrases with a quantity in a metric unit, and the same quantity in a smaller unit."""

from __future__ import annotations

from random import Random
from typing import Any

# A unit's names, the smaller unit and the factor.
_UNITS = (
    (("km", "kilometres", "kilometers"), "m", 1000),
    (("kg", "kilos", "kilograms"), "g", 1000),
    (("l", "litres", "liters"), "ml", 1000),
    (("s", "seconds", "sec"), "ms", 1000),
    (("m", "metres", "meters"), "cm", 100),
    (("cm", "centimetres", "centimeters"), "mm", 10),
)
_FORMS = (
    "{number} {unit}",
    "about {number} {unit}",
    "{number} {unit} of rope",
    "How much is {number} {unit}?",
    "The parcel says {number} {unit}.",
    "we need {number} {unit} by Friday",
    "It was {number} {unit} in total.",
    "convert {number} {unit}",
)


def example(rng: Random) -> tuple[str, dict[str, Any]]:
    """A phrase and the quantity in the smaller unit."""
    names, smaller, factor = rng.choice(_UNITS)
    number = rng.randint(2, 99)
    text = rng.choice(_FORMS).format(number=number, unit=rng.choice(names))
    return text, {"value": number * factor, "unit": smaller}
