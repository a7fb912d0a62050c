"""Generate values to filter by, and the text for them.

A value of digits only, or a decimal number, is a number; true and false are booleans; everything else is a string.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from uuid import UUID

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.lists import word_list

Scalar = str | int | float | bool

_PORTS = (0, 1, 2, 3, 4, 7, 12, 25, 80, 443, 5432, 8080)
_NUMBERS = (0, 1, 2, 3, 4, 5, 10, 20, 25, 50, 100, 200, 256, 500, 1000, 2000, 5000, 10_000)
_PERCENTAGES = (1, 5, 10, 20, 25, 50, 60, 75, 80, 90, 95, 99)
_PRICES = (5, 10, 20, 50, 99, 100, 250, 500, 1000)
_FIRST_SECOND, _LAST_SECOND = 1_690_000_000, 1_760_000_000
_LISTED = {"env": "environments", "region": "regions", "method": "methods", "status": "statuses"}
_LISTED |= {"op": "operations", "text": "messages"}


@dataclass(frozen=True)
class Value:
    """A value in a query, and its text in a question."""

    value: Scalar
    text: str


def sample_value(rng: Random, column: Column) -> Value:
    """A random value that this column could have."""
    text = _text(rng, column)
    return Value(parse_scalar(text), text)


def parse_scalar(text: str) -> Scalar:
    """The value of a text: a number if it looks like one, otherwise the text."""
    if text.isdigit() and (text == "0" or text[0] != "0") and len(text) <= 15:
        return int(text)
    whole, dot, fraction = text.partition(".")
    if dot and whole.isdigit() and fraction.isdigit():
        return float(text)
    return text


def number_text(rng: Random, kind: str) -> str:
    """A random number, round or not, that suits the kind of column."""
    if kind == "pct":
        return str(rng.choice(_PERCENTAGES))
    if kind == "money":
        return rng.choice((str(rng.choice(_PRICES)), f"{rng.randint(1, 99)}.5"))
    if rng.random() < 0.35:
        return str(rng.randint(2, 3000))
    number = rng.choice(_NUMBERS)
    return str(number if number or kind in {"num", "count"} else 1)


def random_second(rng: Random) -> int:
    """A random Unix time between 2023 and 2025."""
    return rng.randint(_FIRST_SECOND, _LAST_SECOND)


def _text(rng: Random, column: Column) -> str:
    kind, detail = column.kind, column.detail
    if kind == "enum":
        make_up = rng.random() < 0.25 and not any(character in detail for character in "/:")
        return _made_up(rng) if make_up else rng.choice(detail.split(","))
    if kind == "id":
        return _identifier(rng, detail)
    if kind in _LISTED:
        return rng.choice(word_list(_LISTED[kind]))
    return _COMPOSED[kind](rng) if kind in _COMPOSED else number_text(rng, kind)


def _service(rng: Random) -> str:
    """`checkout-service`, `authApi`, `cart`."""
    base, suffix = rng.choice(word_list("services")), rng.choice((*word_list("service suffixes"), ""))
    if not suffix:
        return base
    joined = rng.choice(("{}-{}", "{}-{}", "{}-{}", "{}_{}", "{}{}"))
    return joined.format(base, suffix if joined != "{}{}" else suffix.capitalize())


def _path(rng: Random) -> str:
    """`/api/v1/users`, `/login`."""
    parts = rng.sample(word_list("path parts"), rng.choice((1, 1, 2)))
    return rng.choice(("/", "/", "/api/", "/api/v1/", "/v2/")) + "/".join(parts) + rng.choice(("", "", "", "/{id}"))


def _url(rng: Random) -> str:
    return f"https://{rng.choice(word_list('services'))}.{rng.choice(word_list('mail domains'))}{_path(rng)}"


def _email(rng: Random) -> str:
    return f"{rng.choice(word_list('people'))}@{rng.choice(word_list('mail domains'))}"


def _host(rng: Random) -> str:
    base = rng.choice(word_list("services"))
    return f"{base}-{rng.choice((f'{rng.randint(1, 40):02d}', f'{rng.getrandbits(20):05x}'))}"


def ip_address(rng: Random) -> str:
    """`10.3.200.7`."""
    return ".".join(str(rng.randint(1, 254)) for _ in range(4))


def _version(rng: Random) -> str:
    return f"{rng.choice(('', '', 'v'))}{rng.randint(0, 9)}.{rng.randint(0, 30)}.{rng.randint(0, 20)}"


def _code(rng: Random) -> str:
    return str(rng.choice((*_PORTS, rng.randint(1, 9999))))


_COMPOSED: dict[str, Callable[[Random], str]] = {
    "service": _service,
    "path": _path,
    "url": _url,
    "email": _email,
    "host": _host,
    "ip": ip_address,
    "version": _version,
    "code": _code,
    "ts": lambda rng: str(random_second(rng)),
}


def _made_up(rng: Random) -> str:
    words = word_list("values")
    word, other = rng.choice(words), rng.choice(words)
    shapes = (word, f"{word}-{rng.randint(1, 30)}", f"{word}_{other}", f"{word}-{other}", word.capitalize())
    return rng.choice(shapes)


def _identifier(rng: Random, detail: str) -> str:
    kind, _, prefix = detail.partition(":")
    if kind == "uuid":
        return str(UUID(int=rng.getrandbits(128))) if rng.random() < 0.25 else f"{rng.getrandbits(32):08x}"
    if kind == "hex":
        return f"{rng.getrandbits(64) | 1 << 60:016x}"[: rng.choice((6, 8, 16))] + rng.choice("abcdef")
    if kind == "prefix":
        tail = rng.choice((str(rng.randint(10, 99999)), f"{rng.getrandbits(24):06x}"))
        return f"{prefix}{rng.choice('_-')}{tail}"
    return str(rng.randint(1, 10 ** rng.randint(2, 7)))
