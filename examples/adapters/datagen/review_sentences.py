"""Sentences of reviews, and whether they are positive, negative or neutral."""

from __future__ import annotations

from random import Random
from typing import Any

from examples.adapters.datagen.word_list import words

_THINGS = words(
    """room coffee blender film phone hotel soup jacket app book train seat service printer garden music battery screen
    pizza museum course chair keyboard concert breakfast"""
)
_WORDS = {
    "positive": words(
        """wonderful excellent great lovely perfect fantastic superb delightful amazing brilliant pleasant
        outstanding"""
    ),
    "negative": words(
        """awful terrible broken disappointing useless horrible dirty boring dreadful poor annoying worthless"""
    ),
    "neutral": words("blue small new wooden closed grey round empty large old red simple"),
}
_FORMS = {
    "positive": (
        "The {thing} was {word}.",
        "I love this {thing}, it is {word}!",
        "What a {word} {thing}, we will come back.",
        "Really {word} {thing}, thank you.",
        "Best {thing} I ever had.",
        "We enjoyed the {thing} very much.",
        "The {thing} works better than I expected.",
        "I would recommend the {thing} to everyone.",
    ),
    "negative": (
        "The {thing} was {word}.",
        "I hate this {thing}, it is {word}!",
        "What a {word} {thing}, never again.",
        "Really {word} {thing}, I want my money back.",
        "Worst {thing} I ever had.",
        "The {thing} stopped working after two days.",
        "Nobody cared about the {thing}, and the staff was rude.",
        "I would not recommend the {thing} to anyone.",
    ),
    "neutral": (
        "The {thing} was {word}.",
        "I bought the {thing} on Monday.",
        "There is a {word} {thing} next to the door.",
        "The {thing} comes in a {word} box.",
        "The {thing} is on the second floor.",
        "We used the {thing} twice.",
        "The {thing} has a {word} handle and weighs two kilos.",
        "The {thing} opens at nine.",
    ),
}


def example(rng: Random) -> tuple[str, dict[str, Any]]:
    """A sentence and its sentiment."""
    sentiment = rng.choice(sorted(_FORMS))
    text = rng.choice(_FORMS[sentiment]).format(thing=rng.choice(_THINGS), word=rng.choice(_WORDS[sentiment]))
    return text, {"sentiment": sentiment}
