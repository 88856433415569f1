"""Text as it may be shown: names from tables and strings of records hold any character.

Everything that is printed, drawn or written into a page goes through one of these functions.
"""

import html
import itertools
import math
import re
from collections.abc import Iterable

WIDE = "\u2e80"
"""The first of the wide letters."""
NAME = 80
"""Widest name shown in a table or a list."""
MOST = 12
"""Most names, panels or rows where there is one for each variable or action."""
_PLANES = "".join(chr((plane << 16) + end) for plane in range(17) for end in (0xFFFE, 0xFFFF))
_HIDDEN = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufeff{_PLANES}]")
"""Control characters (terminals obey them, XML forbids them), line separators, directions that reach beyond a name,
single surrogates (of file names that are not UTF-8) and what is no character in Unicode."""


def visible(text: object) -> str:
    """On one line, with every character that cannot be shown as its escape in Python."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def visible_lines(text: object) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(visible, str(text).split("\n")))


def width(text: str) -> int:
    """Width in Latin letters, roughly: ideographs, emoji and rare scripts count twice."""
    return len(text) + sum(letter >= WIDE for letter in text)


def shorten(text: str, most: int = NAME) -> str:
    """With an ellipsis inside if it is wider: names often differ only at their end."""
    if width(text) <= most:
        return text
    tail = (most - 1) // 3
    return f"{_start(text, most - 1 - tail)}…{_start(text[::-1], tail)[::-1]}"


def _start(text: str, most: int) -> str:
    """As much of the start of a text as is this wide."""
    widths = itertools.accumulate(map(width, text[:most]))
    return text[: sum(so_far <= most for so_far in widths)]


def short_name(name: object, most: int = NAME) -> str:
    """A name that can be shown anywhere; an empty one in quotation marks."""
    return shorten(visible(name), most) or '""'


def listed(names: Iterable[object], most: int = MOST) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    shown = [*map(short_name, names[:most])]
    if any(", " in name for name in shown):
        shown = [f"'{name}'" for name in shown]
    return ", ".join(shown) + more


def number_of(text: str) -> float | None:
    """The finite number that a text is; None if it is none."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def escaped(text: object) -> str:
    """As text or attribute of HTML and XML."""
    return html.escape(visible(text))


def say(*sentences: object) -> None:
    """Print sentences, one per line."""
    for sentence in sentences:
        print(visible(sentence))


def file_name(name: str) -> str:
    """A name as part of a file's: `gym:CartPole-v1` becomes `gym-CartPole-v1`."""
    return re.sub(r"[^\w.-]+", "-", name)
