"""What stand-ins for engines write: words that a hash of the request chooses, or JSON of a schema."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

WORDS = [
    *("the", "a", "one", "old", "new", "small", "great", "quiet", "river", "garden", "house", "tree", "stone"),
    *("light", "winter", "morning", "walks", "sleeps", "finds", "keeps", "opens", "slowly", "always", "never"),
    *("under", "over", "behind", "beside", "and", "but", "because", "while", "bread", "water", "music", "paper"),
]


def words(key: str, prompt: Sequence[int], count: int = 640) -> str:
    """Always the same for the same key and prompt."""
    random = Random(f"{key} {list(prompt)}")
    return " ".join([random.choice(WORDS).capitalize(), *random.choices(WORDS, k=count - 1)])


def json_of(schema: str | dict[str, Any] | None, random: Random, text: str | None = None) -> str:
    """A document of a JSON schema, of the few kinds that tests ask for; of none: an object. `text` is its strings."""
    wanted = json.loads(schema) if isinstance(schema, str) else schema
    return json.dumps({"word": random.choice(WORDS)} if wanted is None else _value(wanted, random, text))


def _value(schema: dict[str, Any], random: Random, text: str | None) -> Any:
    if "enum" in schema:
        return random.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            return {name: _value(each, random, text) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [_value(schema.get("items", {}), random, text)]
        case "boolean":
            return random.random() < 0.5
        case "integer" | "number":
            return random.randrange(100)
        case _:
            return text or random.choice(WORDS)
