"""Generate values of the shapes that people paste into questions: ids, ARNs, URLs, addresses, sentences.

Only a text of digits, or a decimal number of a numeric column, is a number. Everything else is a string as typed.
"""

from collections.abc import Callable
from random import Random
from uuid import UUID

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.lists import word_list
from examples.honeycomb.datagen.quantities import MS_PER, whole
from examples.honeycomb.datagen.sample_values import Value, ip_address, number_text, parse_scalar, sample_value

_SENTENCES = (
    "card was declined by issuer",
    "could not acquire lock, giving up",
    "upstream sent too big header",
    "Zahlung abgelehnt: Konto gesperrt",
    "connexion refusée par l'hôte",
    "can't open file",
    "unexpected token < in JSON at position 0",
    "no space left on device",
    "TLS handshake timeout",
    "user 42 not found",
    "retry later: rate exceeded",
    "資料が見つかりません",
    "índice fora do intervalo",
    "deadline exceeded (attempt 3 of 5)",
)
_NAMES = (
    "José Álvarez",
    "Zoë Quinn",
    "Müller GmbH",
    "O'Brien & Sons",
    "Łukasz",
    "Blue Kettle",
    "naïve-café",
    "Desk Lamp XL",
    "Ørsted",
    "東京支店",
    "x_Shadow_x",
    "Hansen Ltd.",
    "Trail Shoe 42",
    "Frühlingsbote",
)
_STATEMENTS = ("SELECT * FROM orders", "UPDATE users SET", "INSERT INTO line_items", "DELETE FROM sessions")
_MS = (20, 50, 75, 100, 150, 200, 250, 300, 400, 500, 750, 900, 1000, 1500, 2000, 3000, 5000, 10_000, 30_000, 60_000)
_QUERIES = ("page=2&sort=asc", "q=red+shoes&lang=de", "utm_source=mail&id=77", "ref=a%20b", "token=ab12&x=1")


def shaped_value(rng: Random, column: Column) -> Value:
    """A random value of a column, with its text; strings are never split or converted."""
    kind, detail = column.kind, column.detail.split(":")[0]
    if column.numeric:
        return numeric_value(rng, column)
    if kind in {"id", "text"} and detail in _SHAPES:
        text = _SHAPES[detail](rng)
        return Value(parse_scalar(text) if text.isdigit() else text, text)
    if kind == "id" and detail == "prefix":
        text = f"{column.detail.split(':')[1]}_{_token(rng, rng.choice((8, 14, 24)))}"
        return Value(text, text)
    if kind == "url":
        text = f"{sample_value(rng, column).text.replace('{id}', '17')}?{rng.choice(_QUERIES)}"
        return Value(text, text)
    if kind == "enum":
        text = rng.choice(column.detail.split(","))
        return Value(text, text)
    value = sample_value(rng, column)
    return value if kind in {"status", "id", "code"} else Value(value.text, value.text)


def numeric_value(rng: Random, column: Column) -> Value:
    """A random threshold of a numeric column, in the column's unit."""
    if column.kind == "dur":
        number = whole(rng.choice(_MS) / MS_PER.get(column.detail or "ms", 1))
        return Value(number, str(number))
    if column.kind == "bytes":
        number = rng.choice((512, 1000, 2048, 4096, 10_000, 65_536, 500_000, 1_000_000, 5_000_000))
        return Value(number, str(number))
    text = number_text(rng, column.kind)
    return Value(parse_scalar(text), text)


def _token(rng: Random, length: int) -> str:
    return "".join(rng.choice("abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(length))


def _hex(length: int) -> Callable[[Random], str]:
    """Digits and letters; sometimes such that they could be read as a number with an exponent."""
    return lambda rng: (
        f"{rng.randrange(10 ** (length - 3), 10 ** (length - 2))}e{rng.randint(1, 9)}"
        if rng.random() < 0.15
        else f"{rng.getrandbits(4 * length):0{length}x}"[:-1] + rng.choice("abcdf")
    )


def _ip_and_port(rng: Random) -> str:
    if rng.random() < 0.15:
        return f"[2001:db8::{rng.getrandbits(16):x}]:{rng.randint(1024, 65_535)}"
    return f"{ip_address(rng)}:{rng.choice((443, 5432, 6379, 8080, 9092, rng.randint(1024, 65_535)))}"


def _arn(rng: Random) -> str:
    region, account = rng.choice(word_list("regions")), rng.randint(10**11, 10**12 - 1)
    name = f"{rng.choice(word_list('services'))}-{rng.choice(word_list('values'))}"
    service = rng.choice(("lambda:{r}:{a}:function:{n}", "ecs:{r}:{a}:cluster/{n}", "sns:{r}:{a}:{n}"))
    return "arn:aws:" + service.format(r=region, a=account, n=name)


def _pod(rng: Random) -> str:
    return f"{rng.choice(word_list('services'))}-{rng.getrandbits(36):09x}-{_token(rng, 5).lower()}"


def _semver(rng: Random) -> str:
    base = f"{rng.randint(0, 24)}.{rng.randint(0, 30)}.{rng.randint(0, 20)}"
    return rng.choice(("", "", "v")) + base + rng.choice(("", "", "", "-rc.1", "-beta.2", "+build.77"))


def _queue_url(rng: Random) -> str:
    region = rng.choice(word_list("regions"))
    return f"https://sqs.{region}.amazonaws.com/{rng.randint(10**11, 10**12 - 1)}/{rng.choice(word_list('services'))}-q"


_SHAPES: dict[str, Callable[[Random], str]] = {
    "uuid": lambda rng: str(UUID(int=rng.getrandbits(128), version=4)),
    "hex": _hex(16),
    "hex16": _hex(16),
    "hex24": _hex(24),
    "hex32": _hex(32),
    "sha": lambda rng: f"{rng.getrandbits(160):040x}"[: rng.choice((7, 10, 40))] + "d",
    "number": lambda rng: str(rng.randint(10, 10 ** rng.randint(3, 9))),
    "ipport": _ip_and_port,
    "arn": _arn,
    "pod": _pod,
    "semver": _semver,
    "queueurl": _queue_url,
    "sku": lambda rng: f"{_token(rng, 2).upper()}-{rng.randint(100, 9999)}-{_token(rng, 1).upper()}",
    "mac": lambda rng: ":".join(f"{rng.randrange(256):02x}" for _ in range(6)),
    "s3": lambda rng: f"s3://{rng.choice(word_list('values'))}-raw/2025/{rng.randint(1, 12):02d}/part-0.parquet",
    "code": lambda rng: f"{rng.choice(('E', 'ERR_', 'MEDIA_'))}{rng.randint(10, 9999)}",
    "sentence": lambda rng: rng.choice(_SENTENCES),
    "name": lambda rng: rng.choice(_NAMES),
    "sql": lambda rng: rng.choice(_STATEMENTS),
}
