"""Chat-like requests for a random model, each answered by a JSON object whose schema bounds its length."""

from __future__ import annotations

import json
import random
from typing import Final

from serving.constraints import JsonSchemaConstraint
from serving.text import Tokenizer
from serving.types import GenerationRequest, SamplingParams

NUM_COMMON: Final = 4  # requests that are asked at every level
_MAX_TOKENS: Final = 160
_SERVICES: Final = ("checkout", "gateway", "search", "billing", "login", "mail")
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "service": {"enum": [*_SERVICES, "another"]},
        "priority": {"type": "integer", "minimum": 1, "maximum": 5},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 3},
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 24}, "waits": {"type": "boolean"}},
            "required": ["name", "waits"],
            "additionalProperties": False,
        },
    },
    "required": ["title", "service", "priority", "tags", "customer"],
    "additionalProperties": False,
}
_SYSTEM: Final = f"""You read messages of customers and answer with one JSON object, without any other text.
The title says in at most 40 characters what is wrong. The service is one of {", ".join(_SERVICES)}, or "another" if the
message names none of them. The priority is 1 if all customers are affected, 2 if many are, 3 if some are, 4 if one is,
and 5 if nobody is. There are two or three tags of one word each. The customer's name is as the message gives it, and
"waits" says whether the customer waits for an answer. Never add a property, and never leave one out."""
_STATES: Final = ("slow", "down", "full of errors", "refusing every request", "giving old results")
_TIMES: Final = ("this morning", "yesterday evening", "an hour", "the last deployment", "Tuesday")
_NAMES: Final = ("Ada Moreau", "Jonas Lind", "Mina Okafor", "Theo Brandt", "Lucía Vega")
_ENDS: Final = ("Please call me back.", "No answer is needed.", "We sell nothing meanwhile.", "It can wait.")


def questions(tokenizer: Tokenizer, at_once: int, count: int) -> list[GenerationRequest]:
    """Greedy requests; a level of so many at once has its own questions, after those that all levels have."""
    constraint = JsonSchemaConstraint(json.dumps(_SCHEMA))
    end, start = (tokenizer.eos_token_ids[0], tokenizer.eos_token_ids[0] + 1)
    found = []
    for number in range(count):
        level = 0 if number < NUM_COMMON else at_once
        texts = (f"system\n{_SYSTEM}", f"user\n{_message(random.Random(1000 * level + number))}", "assistant\n")
        prompt: list[int] = []
        for text in texts:
            prompt += [start, *tokenizer.encode(text), end]
        sampling = SamplingParams(max_tokens=_MAX_TOKENS)
        found.append(GenerationRequest(f"{at_once}-{number}", tuple(prompt[:-1]), sampling, constraint))
    return found


def _message(rng: random.Random) -> str:
    service, other = rng.sample(_SERVICES, 2)
    return (
        f"Hello, this is {rng.choice(_NAMES)}, order {rng.randrange(10**6)}. Your {service} has been "
        f"{rng.choice(_STATES)} since {rng.choice(_TIMES)}, while {other} is {rng.choice(_STATES)}. {rng.choice(_ENDS)}"
    )
