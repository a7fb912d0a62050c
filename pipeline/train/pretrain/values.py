"""Kinds of values: how they are written in a text, and what an answer has for them.

A kind knows the names that keys for it have and the words that stand before it in a text, so that a draft model can
learn which part of a text a key means.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipeline.train.pretrain.words import Words

Node = Mapping[str, Any]
Drawn = tuple[str, Any]  # as it stands in a text, and the value in the answer
Draw = Callable[[Words], Drawn]

TEXT: Final[Node] = {"type": "string", "maxLength": 200}
NUMBER: Final[Node] = {"type": "number"}
INTEGER: Final[Node] = {"type": "integer"}
BOOLEAN: Final[Node] = {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of values.

    Args:
        keys: names of keys, words separated by spaces; none means that any will do.
        cues: what stands before the value in prose.
        rules: ways to write a value, of which one task has one, each with the schema of the value.
    """

    keys: tuple[str, ...]
    cues: tuple[str, ...]
    rules: tuple[tuple[Node, Draw], ...]


def object_of(properties: Mapping[str, Node]) -> dict[str, Any]:
    """The schema of an object that has all of these properties and no other."""
    names = list(properties)
    return {"type": "object", "properties": dict(properties), "required": names, "additionalProperties": False}


def copied(draw: Callable[[Words], str]) -> Draw:
    """A value that is what stands in the text."""

    def drawn(words: Words) -> Drawn:
        text = draw(words)
        return text, text

    return drawn


def changed(draw: Callable[[Words], str], change: Callable[[str], Any]) -> Draw:
    """A value that is computed from what stands in the text."""

    def drawn(words: Words) -> Drawn:
        text = draw(words)
        return text, change(text)

    return drawn


_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_COUNTED: Final = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
CURRENCIES: Final = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR"}
_UNITS: Final = (
    *("kg", "g", "km", "m", "cm", "mm", "ml", "l", "min", "h"),
    *("s", "days", "pages", "GB", "MB", "kWh", "%", "pieces", "miles", "lb"),
)


def date(words: Words) -> tuple[str, datetime.date]:
    """A date in one of many spellings."""
    day = datetime.date(1960, 1, 1) + datetime.timedelta(days=words.order.randint(0, 27_000))
    month = _MONTHS[day.month - 1]
    forms = (
        *(f"{day.day} {month} {day.year}", f"{month} {day.day}, {day.year}", f"{day.day}.{day.month}.{day.year}"),
        *(day.isoformat(), f"{month[:3]} {day.day} {day.year}", f"{day.year}/{day.month:02}/{day.day:02}"),
    )
    return words.choice(forms), day


def iso_date(words: Words) -> Drawn:
    """A date in one of many spellings, and as in ISO 8601."""
    text, day = date(words)
    return text, day.isoformat()


def amount(words: Words) -> tuple[str, str, float]:
    """A sum of money: its text, the currency and the number."""
    symbol = words.choice(tuple(CURRENCIES))
    number = round(words.order.choice((1, 10, 100, 1000)) * words.order.uniform(1, 10), words.order.choice((0, 2, 2)))
    digits = f"{number:,.2f}" if words.chance(0.3) else f"{number:.2f}" if number % 1 else f"{number:.0f}"
    currency = CURRENCIES[symbol]
    value = float(digits.replace(",", ""))
    return words.choice((f"{symbol}{digits}", f"{digits} {currency}", f"{symbol} {digits}")), currency, _whole(value)


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value


def money(words: Words) -> Drawn:
    """A sum of money as a number."""
    text, _, number = amount(words)
    return text, number


def money_parts(words: Words) -> Drawn:
    """A sum of money as an object."""
    text, currency, number = amount(words)
    return text, {"amount": number, "currency": currency}


def quantity(words: Words) -> tuple[str, str, float]:
    """A number with a unit: its text, the unit and the number."""
    number = _whole(words.order.choice((words.order.randint(1, 500), round(words.order.uniform(0.1, 90), 1))))
    unit = words.choice(_UNITS)
    return f"{number}{words.choice((' ', ''))}{unit}", unit, number


def quantity_parts(words: Words) -> Drawn:
    """A number with a unit as an object."""
    text, unit, number = quantity(words)
    return text, {"value": number, "unit": unit}


def count(words: Words) -> Drawn:
    """A whole number in digits or as a word."""
    number = words.order.randint(0, 12) if words.chance(0.5) else words.order.randint(2, 3000)
    return (_COUNTED[number] if number < len(_COUNTED) and words.chance(0.6) else str(number)), number


def _time(words: Words) -> str:
    hour, minute = words.order.randint(0, 23), words.order.choice((0, 0, 15, 30, 45, words.order.randint(0, 59)))
    clock = (
        f"{hour % 12 or 12}{f':{minute:02}' if minute else ''}{words.choice(('', ' '))}{'am' if hour < 12 else 'pm'}"
    )
    return words.choice((f"{hour:02}:{minute:02}", f"{hour}:{minute:02}", clock))


def _when(words: Words) -> str:
    unit = words.choice(("minutes", "hours", "days", "weeks", "months", "years"))
    weekday = words.choice(("Monday", "tuesday", "Wednesday", "Thursday", "friday", "Saturday", "Sunday"))
    month = words.choice(_MONTHS)
    forms = (
        *(
            "tomorrow",
            "today",
            f"next {weekday}",
            f"in {words.order.randint(2, 40)} {unit}",
            weekday,
            f"{month} the 3rd",
        ),
        *(
            f"{words.order.randint(2, 30)} {unit} from now",
            f"in {month} {words.order.randint(1950, 2040)}",
            _time(words),
        ),
    )
    return words.choice(forms)


def _street(words: Words) -> str:
    kind = words.choice(("Street", "St", "Road", "Rd.", "Avenue", "Ave", "Lane", "Blvd", "Way", "Drive", "Platz", ""))
    side = words.choice(("", "", "", "N ", "South ", "E. "))
    name = f"{side}{words.names(2)} {kind}".strip()
    return name.upper() if words.chance(0.1) else name


def _unit(words: Words) -> str:
    return f"{words.choice(('Apt', 'Suite', '#', 'Unit', 'Floor', 'Ste.'))} {words.digits(1, 3)}"


def _mail(words: Words) -> str:
    user, domain = words.word(), words.word()
    more = words.choice(("." + words.word(), words.digits(1, 3), ""))
    return f"{user}{more}@{domain}.{words.choice(('com', 'org', 'de', 'io'))}"


def _phone(words: Words) -> str:
    form = words.choice(("+{a} {b} {c}", "({b}) {b}-{d}", "{b}-{b}-{d}", "0{b}/{c}", "+{a}{b}{c}"))
    return form.format(a=words.digits(1, 2), b=words.digits(3, 3), c=words.digits(5, 7), d=words.digits(4, 4))


def _url(words: Words) -> str:
    host = f"{words.word()}.{words.choice(('com', 'net', 'org'))}"
    return f"https://{host}/{words.word()}{words.choice(('', '/' + words.word(), '?id=' + words.digits(2, 5)))}"


def _path(words: Words) -> str:
    return (
        "/"
        + "/".join(words.word() for _ in range(words.order.randint(1, 3)))
        + words.choice((".py", ".log", "", ".txt"))
    )


def _ip(words: Words) -> str:
    return ".".join(str(words.order.randint(1, 254)) for _ in range(4))


def _person(words: Words) -> str:
    return words.choice(("", "", "", "Dr. ", "Mrs. ", "Mr ")) + words.names(3)


def _company(words: Words) -> str:
    return f"{words.names(2)}{words.choice(('', '', ' Inc.', ' GmbH', ' Ltd', ' & Sons', ' Group'))}"


def _texts(*draws: Callable[[Words], str]) -> tuple[tuple[Node, Draw], ...]:
    return tuple((TEXT, copied(draw)) for draw in draws)


def _number(text: str) -> float:
    return _whole(float(text.rstrip("%").replace(",", "")))


KINDS: Final = {
    "person": Kind(
        (
            "name",
            "customer",
            "author",
            "contact",
            "full name",
            "assignee",
            "owner",
            "client",
            "patient",
            "sender",
            "artist",
            "speaker",
            "guest",
            "recipient",
            "applicant",
        ),
        ("from", "by", "for", "with", "of", "to", "attention", "dear", "ask", "my name is"),
        _texts(_person, lambda words: words.names(2)),
    ),
    "company": Kind(
        (
            "company",
            "vendor",
            "supplier",
            "employer",
            "merchant",
            "organization",
            "brand",
            "shop",
            "seller",
            "institution",
        ),
        ("at", "from", "with", "by", "of", "paid to", "supplier is"),
        _texts(_company),
    ),
    "city": Kind(
        ("city", "location", "place", "destination", "town", "region", "country", "venue", "origin", "state"),
        ("in", "near", "at", "to", "from", "around", "based in"),
        _texts(lambda words: words.names(2), lambda words: words.names(3)),
    ),
    "street": Kind(("street", "road", "address line", "street name"), ("at", "on", "along"), _texts(_street)),
    "house": Kind(
        ("house number", "number", "street number", "no"), ("number", "no."), _texts(lambda w: w.digits(1, 5))
    ),
    "unit": Kind(("unit", "suite", "apartment", "floor", "room"), ("in", "at"), _texts(_unit)),
    "zip": Kind(("zip", "postal code", "postcode", "zip code"), ("postcode", "zip"), _texts(lambda w: w.digits(5, 5))),
    "mail": Kind(("email", "mail", "email address", "reply to"), ("at", "mail", "write to"), _texts(_mail)),
    "phone": Kind(("phone", "phone number", "mobile", "tel", "fax"), ("call", "phone", "tel.", "on"), _texts(_phone)),
    "url": Kind(("url", "link", "website", "href", "source"), ("see", "at", "from"), _texts(_url)),
    "path": Kind(("path", "file", "filename", "endpoint", "route"), ("in", "file", "on"), _texts(_path)),
    "ip": Kind(("ip", "host", "address", "client ip", "server"), ("from", "host", "on"), _texts(_ip)),
    "date": Kind(
        ("date", "due date", "birthday", "start date", "invoice date", "day", "deadline", "created at", "expires"),
        ("on", "by", "due", "since", "dated", "until", "before"),
        ((TEXT, iso_date), (TEXT, iso_date), (TEXT, copied(lambda words: date(words)[0]))),
    ),
    "time": Kind(
        ("time", "when", "start", "time range", "starts at", "timestamp", "departure"),
        ("at", "from", "", "around"),
        _texts(_time, _when),
    ),
    "year": Kind(
        ("year", "release year", "season", "founded"),
        ("in", "from", "of"),
        (
            (TEXT, copied(lambda w: str(w.order.randint(1900, 2040)))),
            (INTEGER, changed(lambda w: str(w.order.randint(1900, 2040)), int)),
        ),
    ),
    "money": Kind(
        ("amount", "price", "total", "cost", "fee", "salary", "budget", "paid"),
        ("for", "costs", "at", "total", "of", "about"),
        (
            (NUMBER, money),
            (NUMBER, money),
            (TEXT, copied(lambda words: amount(words)[0])),
            (object_of({"amount": NUMBER, "currency": {"enum": list(CURRENCIES.values())}}), money_parts),
        ),
    ),
    "quantity": Kind(
        ("size", "weight", "length", "duration", "distance", "volume", "width", "usage", "speed", "limit"),
        ("of", "about", "over", "for", "under"),
        (
            *_texts(lambda words: quantity(words)[0]),
            (object_of({"value": NUMBER, "unit": TEXT}), quantity_parts),
        ),
    ),
    "count": Kind(
        (
            "quantity",
            "count",
            "guests",
            "party size",
            "people",
            "number of items",
            "seats",
            "qty",
            "age",
            "rating",
            "score",
            "rooms",
        ),
        ("for", "", "about", "order", "with"),
        ((INTEGER, count), (INTEGER, count), (TEXT, copied(lambda w: count(w)[0]))),
    ),
    "percent": Kind(
        ("percent", "discount", "rate", "progress", "share", "tax"),
        ("by", "at", "with", "of"),
        (
            (NUMBER, changed(lambda w: f"{w.order.randint(1, 100)}%", _number)),
            (TEXT, copied(lambda w: f"{w.order.randint(1, 100)}%")),
        ),
    ),
    "code": Kind(
        (
            "id",
            "order id",
            "sku",
            "invoice number",
            "reference",
            "model",
            "ticket",
            "version",
            "part number",
            "serial",
            "flight",
            "case",
        ),
        ("number", "ref", "for", "no.", "ticket", "id", "model"),
        _texts(lambda words: words.code()),
    ),
    "title": Kind(
        (
            "title",
            "subject",
            "song",
            "album",
            "book",
            "movie",
            "event",
            "playlist",
            "project",
            "topic",
            "track",
            "object name",
            "show",
        ),
        ("called", "titled", "about", "named", "play", "the", "watch", "find", "my"),
        _texts(lambda words: words.title(), lambda words: words.names(4)),
    ),
    "thing": Kind(
        (
            "item",
            "product",
            "category",
            "type",
            "object type",
            "ingredient",
            "dish",
            "description",
            "symptom",
            "action",
            "service",
            "cuisine",
            "genre",
            "task",
            "feature",
            "reason",
        ),
        ("a", "the", "some", "any", "an", "for", "new", "with a"),
        _texts(lambda words: words.phrase(1, 3), lambda words: words.word()),
    ),
    "note": Kind(
        ("note", "comment", "message", "summary", "details", "reason", "remark", "body", "text", "quote", "content"),
        ("note:", "because", "says", "that", "message:"),
        _texts(lambda words: words.phrase(4, 11)),
    ),
}

# Values that a text says in other words: what may be written, for each value.
ENUMS: Final[tuple[tuple[str, Mapping[Any, tuple[str, ...]]], ...]] = (
    (
        "priority",
        {
            "low": ("no hurry", "whenever you can", "low priority"),
            "medium": ("soon please", "this week"),
            "high": ("urgent", "as soon as possible", "immediately"),
        },
    ),
    (
        "sentiment",
        {
            "positive": ("great", "i love it", "very happy"),
            "negative": ("terrible", "disappointed", "never again"),
            "neutral": ("it is okay", "average"),
        },
    ),
    (
        "status",
        {
            "open": ("not done yet", "still open", "pending"),
            "closed": ("is done", "was closed", "resolved"),
            "failed": ("failed", "crashed", "error"),
        },
    ),
    ("level", {"INFO": ("INFO", "info"), "WARN": ("WARN", "warning"), "ERROR": ("ERROR", "fatal")}),
    (
        "payment method",
        {"card": ("by card", "visa"), "cash": ("in cash", "cash"), "transfer": ("by bank transfer", "wire")},
    ),
    (
        "intent",
        {
            "order": ("i want to order", "please send"),
            "cancel": ("cancel", "call off"),
            "question": ("how do i", "can you tell me"),
            "complaint": ("this is unacceptable", "i complain"),
        },
    ),
    (
        "language",
        {
            "en": ("in English", "English"),
            "de": ("in German", "auf Deutsch"),
            "fr": ("in French", "French"),
            "es": ("Spanish", "in Spanish"),
        },
    ),
    ("size", {"S": ("small",), "M": ("medium",), "L": ("large", "big")}),
    ("direction", {"asc": ("ascending", "lowest first"), "desc": ("descending", "highest first")}),
    ("confirmed", {True: ("confirmed", "yes", "agreed"), False: ("not confirmed", "no", "unconfirmed")}),
    ("is remote", {True: ("remote", "from home"), False: ("on site", "at the office")}),
    ("paid", {True: ("already paid", "paid"), False: ("unpaid", "not paid yet")}),
)
