"""Draws synthetic tasks, each with one text and its JSON answer.

example = Maker(Words(tokenizer, random.Random(0))).make(); example.prompt, example.answer, example.schema

Every example is of another task: other keys, other order, another rule for what the text lacks. So nothing can be
learned but where in a text a value stands, how values are written in JSON, and what the words of a key mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.train.pretrain.statements import make_statement
from pipeline.train.pretrain.values import ENUMS, KINDS, TEXT, Kind, Node, object_of
from pipeline.train.pretrain.words import Words, spell
from pipeline.train.template_choice import choose_prompt
from tasks.json_text import write_answer

_SEPARATORS: Final = ((", ", ": "),) * 8 + ((",", ":"), (",", ": "))
_CHAT_END: Final = "\nassistant\n"  # what is read of the end of a ChatML prompt
_END: Final = choose_prompt(()).template.partition("}")[2]
_ADDRESS: Final = ("person", "company", "house", "street", "unit", "city", "city", "zip")
_FORMS: Final = {"fields": 58, "call": 12, "statement": 14, "rows": 6, "entities": 6, "copy": 4}  # and their shares
_JOINTS: Final = (" ", " ", ", ", ". ", " and ", "; ", "\n")


@dataclass(frozen=True, slots=True)
class Example:
    """One text of one task.

    Args:
        prompt: what a draft model reads: the text and what follows it in the template.
        answer: JSON, in the separators of the task.
        schema: of the answers.
        written: parts of the prompt that the answer's values come from.
    """

    prompt: str
    answer: str
    schema: Node
    written: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A field of a task, drawn for one text.

    Args:
        key: in the answer.
        label: how a text with labels calls it.
        cue: what stands before it in prose.
        node: schema of its value.
        written: as it stands in the text; None where the text lacks it.
        value: of the answer, where the text has it.
        kind: name of its kind.
    """

    key: str
    label: str
    cue: str
    node: Node
    written: str | None
    value: Any
    kind: str


class Maker:
    """Draws examples."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def make(self) -> Example:
        """An example of a new task."""
        words = self._words
        (form,) = words.order.choices(list(_FORMS), list(_FORMS.values()))
        text, node, value, written = getattr(self, f"_{form}")()
        separators = words.order.choice(_SEPARATORS)
        prompt = self._prompt(text, node)
        return Example(prompt, write_answer(value, *separators), node, tuple(written))

    def _fields(self) -> tuple[str, Node, Any, list[str]]:
        words = self._words
        is_address = words.chance(0.15)
        has_labels = not is_address and words.chance(0.25)
        slots = self._slots(_address(words) if is_address else None, has_labels)
        told = list(slots)
        if not is_address and words.chance(0.6):
            words.order.shuffle(told)
        if is_address:
            joint = words.choice((", ", ", ", " ", "\n"))
            text = "".join(f"{s.written}{words.choice((joint, joint, ' ', ', '))}" for s in told if s.written).rstrip(
                ", \n"
            )
        elif has_labels:
            text = self._labelled(told)
        else:
            text = self._prose(told)
        node, value = self._answer(slots)
        return text, node, value, _written(slots)

    def _call(self) -> tuple[str, Node, Any, list[str]]:
        """A command, and the call of a function: its name is made of the command's words."""
        words = self._words
        verb = words.choice(
            ("play", "book", "find", "add", "search", "get", "rate", "order", "show", "set", words.word())
        )
        thing = words.phrase(1, 2)
        slots = self._slots(None, False)
        name = spell((verb, *thing.split()), words.choice(("snake", "camel", "kebab", "UPPER")))
        name = name[0].upper() + name[1:] if words.chance(0.4) else name
        told = [slot for slot in slots if slot.written]
        words.order.shuffle(told)
        begin = words.choice(("", "", "please ", "can you ", "i want to ", "Hey, "))
        joined = " ".join(f"{slot.cue} {slot.written}".strip() for slot in told)
        text = f"{begin}{verb} {words.choice(('the ', 'a ', '', 'my '))}{thing} {joined}".strip()
        arguments, values = self._answer(slots)
        first, second = words.order.choice(
            (
                ("intent", "slots"),
                ("name", "arguments"),
                ("function", "parameters"),
                ("action", "args"),
                ("tool", "input"),
            )
        )
        node = object_of({first: {"type": "string", "maxLength": 100}, second: arguments})
        return self._ended(text), node, {first: name, second: values}, _written(slots)

    def _statement(self) -> tuple[str, Node, Any, list[str]]:
        text, statement, written = make_statement(self._words)
        key = self._words.choice(("sql", "query", "filter", "command", "expression", "statement", "search", "code"))
        return text, object_of({key: {"type": "string", "maxLength": 400}}), {key: statement}, written

    def _rows(self) -> tuple[str, Node, Any, list[str]]:
        """Lines of the same form, and a list of objects."""
        words = self._words
        kinds = words.order.sample([name for name in KINDS if name != "note"], words.order.randint(2, 3))
        joint = words.choice((", ", " | ", "; ", "\t", " - ", " "))
        style, table = words.style(), list[list[Slot]]()
        keys = [(name, *self._key(KINDS[name], style, False)) for name in kinds]
        rules = [words.order.choice(KINDS[name].rules) for name in kinds]
        for _ in range(words.order.randint(1, 4)):
            drawn = [draw(words) for _, draw in rules]
            table.append(
                [
                    Slot(k, lb, "", n, w, v, name)
                    for (name, k, lb), (n, _), (w, v) in zip(keys, rules, drawn, strict=True)
                ]
            )
        lines = [joint.join(str(slot.written) for slot in row) for row in table]
        title = spell(words.key(words.choice(("items", "lines", "rows", "products", "events", "entries"))), style)
        intro = f"{words.phrase(2, 5)}:\n" if words.chance(0.5) else ""
        mark = words.choice(("", "", "- ", "* "))
        text = intro + "\n".join(mark + line for line in lines)
        node = object_of({title: {"type": "array", "items": object_of({slot.key: slot.node for slot in table[0]})}})
        value = {title: [{slot.key: slot.value for slot in row} for row in table]}
        return text, node, value, [written for row in table for written in _written(row)]

    def _entities(self) -> tuple[str, Node, Any, list[str]]:
        """A text, and the list of spans in it with their kinds, in the order of the text."""
        words = self._words
        drawn = self._slots(None, False)
        slots = [slot for slot in drawn if isinstance(slot.value, str) and slot.written == slot.value]
        label, span = words.order.choice((("type", "text"), ("label", "value"), ("entity", "span"), ("kind", "word")))
        pairs = [(span, str(slot.written), label, slot.kind) for slot in slots]
        if words.chance(0.5):
            pairs = [(label, kind, span, text) for _, text, _, kind in pairs]
        items = [{a: b, c: d} for a, b, c, d in pairs]
        item = object_of(dict.fromkeys(items[0] if items else (span, label), TEXT))
        return (
            self._prose(slots),
            object_of({"entities": {"type": "array", "items": item}}),
            {"entities": items},
            _written(slots),
        )

    def _copy(self) -> tuple[str, Node, Any, list[str]]:
        """A text, and the whole of it once more, perhaps in other letters."""
        words = self._words
        text = self._ended(
            " ".join(words.choice((words.names(2), words.phrase(2, 5))) for _ in range(words.order.randint(1, 4)))
        )
        change = words.order.choice((str, str, str.lower, str.title, str.upper))
        key = words.choice(("text", "normalized", "output", "query", "title", "corrected"))
        return text, object_of({key: {"type": "string", "maxLength": 400}}), {key: change(text)}, [text]

    def _slots(self, kinds: Sequence[str] | None, has_labels: bool) -> list[Slot]:
        words, used = self._words, set[str]()
        style, present = words.style(), words.order.choice((1.0, 0.85, 0.6, 0.35))
        is_lower = kinds is None and words.chance(0.3)
        if kinds is None:
            names = list(KINDS)
            kinds = [
                *words.order.sample(names, words.order.randint(1, 6)),
                *words.order.choices(names, k=words.order.choice((0, 0, 1, 2))),
            ]
        slots: list[Slot] = []
        for name in kinds:
            kind = KINDS[name]
            key, label = self._key(kind, style, has_labels and words.chance(0.5))
            is_list = words.chance(0.1)
            node, draw = words.order.choice(kind.rules)
            drawn = [draw(words) for _ in range(words.order.randint(2, 4) if is_list else 1)]
            if is_lower:
                drawn = [(text.lower(), value.lower() if value == text else value) for text, value in drawn]
            written: str | None = _listed(words, [text for text, _ in drawn])
            value = [value for _, value in drawn] if is_list else drawn[0][1]
            node = {"type": "array", "items": node} if is_list else node
            if key not in used:
                written = written if words.chance(present) else None
                slots.append(Slot(key, label, words.choice(kind.cues), node, written, value, name))
                used.add(key)
        if words.chance(0.4):
            slots.insert(words.order.randint(0, len(slots)), self._enum(style, used))
        if all(slot.written is None for slot in slots):
            return self._slots(None, has_labels)
        return slots

    def _enum(self, style: str, used: set[str]) -> Slot:
        words = self._words
        name, meanings = words.order.choice([(name, m) for name, m in ENUMS if spell(name.split(), style) not in used])
        value = words.order.choice(list(meanings))
        node: Node = {"type": "boolean"} if isinstance(value, bool) else {"enum": list(meanings)}
        return Slot(spell(name.split(), style), name, "", node, words.choice(meanings[value]), value, name)

    def _key(self, kind: Kind, style: str, is_random: bool) -> tuple[str, str]:
        """A key and a label for a kind; a random key has the same words in its label."""
        words = self._words
        parts = words.key(None if is_random or words.chance(0.08) else words.choice(kind.keys))
        label = " ".join(parts) if is_random or words.chance(0.7) else words.choice(kind.keys)
        return spell(parts, style), label

    def _answer(self, slots: Sequence[Slot]) -> tuple[Node, Any]:
        """The schema and the value: null, nothing or an empty text for what is missing; some fields in an object."""
        words = self._words
        missing = words.choice(("null", "null", "absent", "absent", "empty"))
        properties: dict[str, Node] = {}
        value: dict[str, Any] = {}
        for slot in slots:
            node, present = dict(slot.node), slot.written is not None
            if missing == "null":
                properties[slot.key] = {"anyOf": [node, {"type": "null"}]}
                value[slot.key] = slot.value if present else None
            else:
                is_empty = missing == "empty" and (node.get("type") in ("string", "array"))
                properties[slot.key] = node
                if present or is_empty:
                    value[slot.key] = slot.value if present else "" if node["type"] == "string" else []
        if len(slots) > 3 and words.chance(0.25):
            start = words.order.randint(0, len(slots) - 2)
            inner = [slot.key for slot in slots[start : start + words.order.randint(2, 3)]]
            outer = spell(
                words.key(words.choice(("details", "data", "info", "address", "request", "order", "fields"))), "snake"
            )
            if outer not in properties:
                properties, value = _grouped(properties, value, outer, inner)
        required = [name for name in properties if name in value and missing != "absent"]
        return {**object_of(properties), "required": required}, value

    def _prose(self, slots: Sequence[Slot]) -> str:
        words = self._words
        told = [slot for slot in slots if slot.written is not None]
        joint = words.choice(_JOINTS)
        filler = words.order.choice((0.0, 0.2, 0.5))
        parts = [words.phrase(1, 4)] if words.chance(0.6) or not told else []
        for slot in told:
            cue = slot.cue if words.chance(0.8) else ""
            quote = words.choice(("", "", "", '"', "'")) if slot.kind in ("title", "note") else ""
            parts.append(f"{cue} {quote}{slot.written}{quote}".strip())
            if words.chance(filler):
                parts.append(words.phrase(1, 5))
        text = parts[0]
        for part in parts[1:]:
            text += (joint if words.chance(0.7) else words.choice(_JOINTS)) + part
        if words.chance(0.15):
            greeting = words.choice(("Hi", "Hello", "Dear all", "Good morning"))
            text = f"{greeting},\n{text}\n{words.choice(('Best', 'Thanks', 'Regards'))},\n{words.name()}"
        return self._ended(text)

    def _labelled(self, slots: Sequence[Slot]) -> str:
        words = self._words
        mark = words.choice((": ", ": ", "=", " = ", " - ", ":\n", " -> "))
        joint = words.choice(("\n", "\n", " ", ", ", "; ", " | "))
        spelled = words.choice(("Title", "plain", "snake", "UPPER", "camel"))
        empty = words.choice(("", "-", "n/a")) if words.chance(0.3) else None
        parts = [
            f"{spell(slot.label.split(), spelled)}{mark}{slot.written if slot.written is not None else empty}"
            for slot in slots
            if slot.written is not None or empty is not None
        ]
        if words.chance(0.25):
            day = f"{words.order.randint(2000, 2030)}-0{words.order.randint(1, 9)}-{words.order.randint(10, 28)}"
            clock = f"{day}T1{words.order.randint(0, 9)}:00:00Z"
            parts[0] = f"{clock} {words.choice(('INFO', 'WARN', 'ERROR', 'DEBUG'))} [{words.word()}] {parts[0]}"
        return joint.join(parts)

    def _ended(self, text: str) -> str:
        words = self._words
        text = text[0].upper() + text[1:] if words.chance(0.4) and text[:1].islower() and text[1:2] != "." else text
        return text + words.choice(("", "", ".", "?", "!"))

    def _prompt(self, text: str, node: Node) -> str:
        """What follows the first heading of the template of `scripts/train`, or the begin of a chat's message."""
        words = self._words
        asks = ""
        if words.chance(0.12):
            keys = list(node["properties"])
            asks = words.choice(
                (f"Answer with JSON of the keys {', '.join(keys)}.", f"JSON schema: {json.dumps(node)[:400]}")
            )
        if words.chance(0.2):
            return f"{text}\n\n{asks}{_CHAT_END}" if asks else f"{text}{_CHAT_END}"
        if words.chance(0.2):
            given = {words.choice(("text", "input", "message", words.word())): text}
            for _ in range(words.order.randint(1, 2)):
                given.setdefault(
                    words.word(), words.choice((words.phrase(1, 5), words.title(), words.code(), words.name()))
                )
            if asks:
                given.setdefault("schema", asks)
            names = [*given]
            words.order.shuffle(names)
            prompt = choose_prompt(names).prompt({name: given[name] for name in names})
            return prompt.split("\n", 1)[1]
        return f"{text}\n\n{asks}".strip() + _END


def _address(words: Words) -> list[str]:
    return [kind for kind in _ADDRESS if kind in ("house", "street") or words.chance(0.6)]


def _written(slots: Sequence[Slot]) -> list[str]:
    return [slot.written for slot in slots if slot.written is not None]


def _listed(words: Words, texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    last = words.choice((" and ", ", ", ", and ", " & "))
    return f"{', '.join(texts[:-1])}{last}{texts[-1]}"


def _grouped(
    properties: Mapping[str, Node], value: Mapping[str, Any], outer: str, inner: Sequence[str]
) -> tuple[dict[str, Node], dict[str, Any]]:
    """Put some properties into an object, which stands where the first of them stood."""
    nodes = {key: properties[key] for key in inner}
    parts = {key: value[key] for key in inner if key in value}
    grouped: dict[str, Node] = {}
    values: dict[str, Any] = {}
    for key, node in properties.items():
        if key == inner[0]:
            grouped[outer] = {**object_of(nodes), "required": []}
            values[outer] = parts
        elif key not in nodes:
            grouped[key] = node
            if key in value:
                values[key] = value[key]
    return grouped, values
