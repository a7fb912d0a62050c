"""Messages with a person's name and perhaps a phone number and an address, and what they say as a contact."""

from __future__ import annotations

from random import Random
from typing import Any

from examples.adapters.datagen.word_list import words

_FIRST = words(
    """Anna Ben Carla Dmitri Elena Farid Greta Hugo Ines Jonas Keiko Lars Marta Nadia Omar Priya Quentin Rosa Samir
    Tessa Uwe Viola Wanda Xavier Yusuf Zoe Aaron Bianca Cedric Dalia"""
)
_LAST = words(
    """Abbott Berger Costa Dubois Eriksen Fischer Garcia Hansen Ito Jansen Kowalski Lopez Moreau Novak Okafor Petrov
    Quinn Rossi Schmidt Tanaka Urban Vargas Weber Xu Yilmaz Zhang Baker Carter Doyle Evans"""
)
_HOSTS = words("example.com example.org example.net mail.example post.example work.example")
_WITH_BOTH = (
    "Please call {name} on {phone} or write to {email}.",
    "{name} moved: the new number is {phone}, mail stays {email}.",
    "New customer: {name}, {email}, {phone}",
    "{email} and {phone} both reach {name}.",
    "For invoices ask {name} ({email}, {phone}).",
)
_WITH_PHONE = (
    "{phone} is the direct line of {name}.",
    "{name} can be reached at {phone} after lunch.",
    "Call back {name}: {phone}",
    "Ring {phone} and ask for {name}.",
)
_WITH_EMAIL = (
    "{name} prefers mail: {email}.",
    "Send the contract to {name} at {email}.",
    "Write to {email}, that is {name}.",
    "cc {name} <{email}>",
)
_WITH_NONE = (
    "I met {name} at the station yesterday.",
    "{name} will send the details next week.",
    "Thanks to {name} for the cake.",
)


def example(rng: Random) -> tuple[str, dict[str, Any]]:
    """A message and its contact."""
    first, last = rng.choice(_FIRST), rng.choice(_LAST)
    forms = rng.choice((_WITH_BOTH, _WITH_BOTH, _WITH_PHONE, _WITH_EMAIL, _WITH_NONE))
    phone = rng.choice(("{}-{}-{}", "{} {} {}", "+{} {} {}")).format(
        rng.randint(100, 999), rng.randint(100, 999), rng.randint(1000, 9999)
    )
    local = rng.choice((f"{first}.{last}", f"{first[0]}{last}", first, f"{last}{rng.randint(1, 99)}")).lower()
    email = f"{local}@{rng.choice(_HOSTS)}"
    name = f"{first} {last}"
    contact = {
        "name": name,
        "phone": phone if forms in (_WITH_BOTH, _WITH_PHONE) else None,
        "email": email if forms in (_WITH_BOTH, _WITH_EMAIL) else None,
    }
    return rng.choice(forms).format(name=name, phone=phone, email=email), contact
