"""Messages to a shop's support, and what their writers want."""

from __future__ import annotations

from random import Random
from typing import Any

from examples.adapters.datagen.word_list import words

_ITEMS = words("shoes lamp tent bike jacket phone table order parcel headphones kettle backpack camera rug")
_FORMS = {
    "refund": (
        "I want my money back for the {item}.",
        "Please refund the {item}.",
        "The {item} does not fit, can I return it and be repaid?",
        "When will I get the refund for my {item}?",
        "Give me back what I paid for the {item}.",
    ),
    "delivery": (
        "Where is my {item}?",
        "The {item} has not arrived yet.",
        "When will the {item} be delivered?",
        "Can you track the shipment of the {item}?",
        "My {item} should have come yesterday.",
    ),
    "cancel": (
        "Please cancel the {item}.",
        "I changed my mind, do not send the {item}.",
        "Stop the order of the {item}, I no longer need it.",
        "I would like to cancel my purchase of the {item}.",
        "How do I cancel the {item}?",
    ),
    "password": (
        "I cannot log in to see my {item}.",
        "I forgot my password.",
        "Please reset my password, I want to buy a {item}.",
        "The site does not accept my login.",
        "My account is locked.",
    ),
    "complaint": (
        "The {item} arrived broken.",
        "The {item} has a scratch and a part is missing.",
        "I am angry, the {item} is of bad quality.",
        "You sent me the wrong {item}.",
        "The {item} stopped working after one day.",
    ),
}
_OPENINGS = ("", "", "Hello, ", "Hi there! ", "Good morning. ", "Dear team, ")


def example(rng: Random) -> tuple[str, dict[str, Any]]:
    """A message and its intent."""
    intent = rng.choice(sorted(_FORMS))
    return rng.choice(_OPENINGS) + rng.choice(_FORMS[intent]).format(item=rng.choice(_ITEMS)), {"intent": intent}
