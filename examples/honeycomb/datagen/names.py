"""Spell column names in different naming styles.

restyle("cart.item_count", "camel")  ->  "cartItemCount"
"""

from random import Random

from examples.honeycomb.datagen.lists import word_list
from examples.honeycomb.datagen.words import split_words

STYLES = ("plain", "app", "snake", "camel", "prefix", "kebab", "title")


def restyle(name: str, style: str, prefix: str = "svc") -> str:
    """The name in another naming style, perhaps with a prefix."""
    words = split_words(name)
    if style == "app":
        return f"app.{name}"
    if style == "prefix":
        return f"{prefix}.{name}"
    if style == "snake":
        return "_".join(words)
    if style == "title":
        return " ".join(word.capitalize() for word in words)
    if style == "kebab":
        return "-".join(words)
    if style == "camel":
        return words[0] + "".join(word.capitalize() for word in words[1:])
    return name


def random_prefix(rng: Random) -> str:
    """A random namespace for column names."""
    return rng.choice(word_list("prefixes"))


def ugly_name(rng: Random) -> str:
    """A meaningless name: hashed, numbered or generated."""
    digits = f"{rng.getrandbits(48):012x}"
    shapes = (
        f"f_{digits[:6]}",
        f"attr{rng.randint(1, 99)}",
        f"x{digits[:8]}",
        f"col_{rng.randint(1, 400):03d}",
        digits,
        f"custom.{digits[:8]}",
        f"_h{digits[:4]}",
        f"fld-{digits[:4]}",
        f"tmp{rng.randint(1, 9)}.v{rng.randint(1, 4)}",
        f"{digits[:8]}.value",
        f"K{digits[:5].upper()}",
        f"m_{rng.randint(1000, 99999)}",
    )
    return rng.choice(shapes)


def near_duplicate(name: str, rng: Random) -> str:
    """A name that is easily confused with this one."""
    words = split_words(name)
    shapes = (
        f"{name}_v2",
        f"{name}_old",
        f"{name}_hash",
        f"raw_{name}",
        f"prev.{name}",
        f"legacy.{name}",
        f"parent.{name}",
        f"{name}.original",
        f"upstream.{name}",
        "_".join(words),
        ".".join(words),
        f"x_{'_'.join(words)}",
    )
    return rng.choice(shapes)
