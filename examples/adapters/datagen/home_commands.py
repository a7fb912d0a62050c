"""Commands to a smart home, and which device in which room should be on or off."""

from __future__ import annotations

from random import Random
from typing import Any

from examples.adapters.datagen.word_list import words

_DEVICES = {
    "light": ("light", "lights", "lamp"),
    "heating": ("heating", "heater", "radiator"),
    "fan": ("fan", "ventilator"),
    "music": ("music", "radio", "speaker"),
}
_ROOMS = words("kitchen bedroom bathroom office garage hall")
_ON = (
    "turn on the {device} in the {room}",
    "Switch the {room} {device} on, please.",
    "start the {device} in the {room}",
    "I need the {device} in the {room}",
    "{room} {device} on",
    "Can you turn the {device} on in the {room}?",
)
_OFF = (
    "turn off the {device} in the {room}",
    "Switch the {room} {device} off, please.",
    "stop the {device} in the {room}",
    "I do not need the {device} in the {room} any more",
    "{room} {device} off",
    "Can you turn the {device} off in the {room}?",
)


def example(rng: Random) -> tuple[str, dict[str, Any]]:
    """A command and what it sets."""
    device, room, is_on = rng.choice(sorted(_DEVICES)), rng.choice(_ROOMS), rng.random() < 0.5
    text = rng.choice(_ON if is_on else _OFF).format(device=rng.choice(_DEVICES[device]), room=room)
    return text, {"device": device, "room": room, "on": is_on}
