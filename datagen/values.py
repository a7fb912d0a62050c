"""Owns the values people filter on: what the query holds and how it is typed. Knows no sentences.

One rule for types: a value of digits only (or a decimal number) is a number, true and false are booleans, everything
else is a string. Use: `sample_value(rng, column)`.
"""

from dataclasses import dataclass
from random import Random
from uuid import UUID

from datagen.columns import Column

Scalar = str | int | float | bool

_NAMES = [
    "checkout",
    "cart",
    "payment",
    "auth",
    "search",
    "catalog",
    "user",
    "order",
    "billing",
    "email",
    "ingest",
    "gateway",
    "pricing",
    "fraud",
]
_NAMES += [
    "inventory",
    "shipping",
    "recommendation",
    "profile",
    "session",
    "frontend",
    "api",
    "web",
    "notification",
    "report",
    "export",
]
_SUFFIXES = ("service", "api", "worker", "svc", "backend", "proxy", "server", "")
_WORDS = [
    "alpha",
    "zeta",
    "acme",
    "nova",
    "delta",
    "orbit",
    "falcon",
    "maple",
    "ember",
    "quartz",
    "lunar",
    "pixel",
    "cobalt",
    "harbor",
    "comet",
]
_WORDS += [
    "blue",
    "north",
    "test",
    "demo",
    "main",
    "legacy",
    "canary",
    "temp",
    "core",
    "edge",
    "primary",
    "shadow",
    "bulk",
]
_PEOPLE = [
    "alice",
    "bob",
    "carol",
    "dave",
    "erin",
    "frank",
    "grace",
    "heidi",
    "ivan",
    "judy",
    "mallory",
    "olivia",
    "peggy",
    "sam",
    "trent",
]
_MAIL = ("example.com", "acme.io", "gmail.com", "test.org", "corp.net")
_PATHS = [
    "users",
    "orders",
    "cart",
    "items",
    "login",
    "search",
    "products",
    "checkout",
    "health",
    "status",
    "invoices",
    "sessions",
]
_REGIONS = [
    "us-east-1",
    "us-west-2",
    "eu-west-1",
    "eu-central-1",
    "ap-southeast-2",
    "us-central1",
    "europe-west4",
    "sa-east-1",
]
_ENVS = ("production", "staging", "prod", "dev", "development", "test", "qa", "canary")
_MESSAGES = [
    "timeout",
    "connection refused",
    "not found",
    "null pointer",
    "deadlock",
    "permission denied",
    "out of memory",
    "retry",
]
_MESSAGES += [
    "invalid token",
    "rate limit",
    "disk full",
    "broken pipe",
    "panic",
    "unauthorized",
    "EOF",
    "certificate",
    "failed to",
]
_OPERATIONS = [
    "GET",
    "HTTP GET",
    "GET /cart",
    "SELECT orders",
    "redis.get",
    "handleRequest",
    "render_template",
    "fetchUser",
]
_OPERATIONS += [
    "POST /checkout",
    "processOrder",
    "kafka.publish",
    "grpc.client",
    "auth.verify",
    "db.query",
    "poll",
]
_STATUSES = (200, 201, 204, 301, 302, 304, 400, 401, 403, 404, 409, 422, 429, 500, 502, 503, 504)
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "GET", "POST", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class Value:
    """A value of the query, and the characters that stand for it in a question."""

    value: Scalar
    text: str


def sample_value(rng: Random, column: Column) -> Value:
    """A value that this column could hold."""
    text = _text(rng, column)
    return Value(parse_scalar(text), text)


def parse_scalar(text: str) -> Scalar:
    """The value that these characters stand for."""
    if text.isdigit() and (text == "0" or text[0] != "0") and len(text) <= 15:
        return int(text)
    whole, dot, fraction = text.partition(".")
    if dot and whole.isdigit() and fraction.isdigit():
        return float(text)
    return text


def _text(rng: Random, column: Column) -> str:
    kind, detail = column.kind, column.detail
    if kind == "enum":
        if rng.random() < 0.25 and not any(c in detail for c in "/:"):
            return _made_up(rng)
        return rng.choice(detail.split(","))
    if kind == "id":
        return _identifier(rng, detail)
    simple = {
        "service": lambda: service_name(rng),
        "env": lambda: rng.choice(_ENVS),
        "region": lambda: rng.choice(_REGIONS),
        "method": lambda: rng.choice(_METHODS),
        "status": lambda: str(rng.choice(_STATUSES)),
        "op": lambda: rng.choice(_OPERATIONS),
        "text": lambda: rng.choice(_MESSAGES),
        "path": lambda: path(rng),
        "url": lambda: f"https://{rng.choice(_NAMES)}.{rng.choice(_MAIL)}{path(rng)}",
        "email": lambda: f"{rng.choice(_PEOPLE)}@{rng.choice(_MAIL)}",
        "host": lambda: (
            f"{rng.choice(_NAMES)}-{rng.choice((f'{rng.randint(1, 40):02d}', f'{rng.getrandbits(20):05x}'))}"
        ),
        "ip": lambda: ".".join(str(rng.randint(1, 254)) for _ in range(4)),
        "version": lambda: (
            f"{rng.choice(('', '', 'v'))}{rng.randint(0, 9)}.{rng.randint(0, 30)}.{rng.randint(0, 20)}"
        ),
        "code": lambda: str(
            rng.choice((0, 1, 2, 3, 4, 7, 12, 25, 80, 443, 5432, 8080, rng.randint(1, 9999)))
        ),
        "ts": lambda: str(rng.randint(1_690_000_000, 1_760_000_000)),
    }
    return simple[kind]() if kind in simple else number_text(rng, kind)


def number_text(rng: Random, kind: str) -> str:
    """A round or an odd number, as fits the kind."""
    if kind == "pct":
        return str(rng.choice((1, 5, 10, 20, 25, 50, 60, 75, 80, 90, 95, 99)))
    if kind == "money":
        return rng.choice(
            (str(rng.choice((5, 10, 20, 50, 99, 100, 250, 500, 1000))), f"{rng.randint(1, 99)}.5")
        )
    if rng.random() < 0.35:
        return str(rng.randint(2, 3000))
    number = rng.choice((0, 1, 2, 3, 4, 5, 10, 20, 25, 50, 100, 200, 256, 500, 1000, 2000, 5000, 10_000))
    return str(number if number or kind in {"num", "count"} else 1)


def service_name(rng: Random) -> str:
    """`checkout-service`, `authApi`, `cart`."""
    base, suffix = rng.choice(_NAMES), rng.choice(_SUFFIXES)
    if not suffix:
        return base
    joined = rng.choice(("{}-{}", "{}-{}", "{}-{}", "{}_{}", "{}{}"))
    return joined.format(base, suffix if joined != "{}{}" else suffix.capitalize())


def path(rng: Random) -> str:
    """`/api/v1/users`, `/login`."""
    parts = rng.sample(_PATHS, rng.choice((1, 1, 2)))
    return (
        rng.choice(("/", "/", "/api/", "/api/v1/", "/v2/"))
        + "/".join(parts)
        + rng.choice(("", "", "", "/{id}"))
    )


def _made_up(rng: Random) -> str:
    word = rng.choice(_WORDS)
    other = rng.choice(_WORDS)
    return rng.choice(
        (word, f"{word}-{rng.randint(1, 30)}", f"{word}_{other}", f"{word}-{other}", word.capitalize())
    )


def _identifier(rng: Random, detail: str) -> str:
    kind, _, prefix = detail.partition(":")
    if kind == "uuid":
        return str(UUID(int=rng.getrandbits(128))) if rng.random() < 0.25 else f"{rng.getrandbits(32):08x}"
    if kind == "hex":
        return f"{rng.getrandbits(64) | 1 << 60:016x}"[: rng.choice((6, 8, 16))] + rng.choice("abcdef")
    if kind == "prefix":
        return f"{prefix}{rng.choice('_-')}{rng.choice((str(rng.randint(10, 99999)), f'{rng.getrandbits(24):06x}'))}"
    return str(rng.randint(1, 10 ** rng.randint(2, 7)))
