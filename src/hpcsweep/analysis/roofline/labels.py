"""Short, distinct labels for kernels, whose names are the signatures of C++ templates."""

from __future__ import annotations

import re
from collections.abc import Iterable


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters; three dots replace its middle."""
    if len(text) <= width:
        return text
    head = (width - 3) * 2 // 3
    return f"{text[:head]}...{text[head + 3 - width :]}"


def labels(names: Iterable[str], width: int) -> dict[str, str]:
    """Return a label per name, of about `width` characters; no two are the same."""
    found: dict[str, str] = {}
    for name in names:
        short = shortened(_bare(name), width)
        twins = sum(re.sub(r" #\d+$", "", label) == short for label in found.values())
        found[name] = f"{short} #{twins + 1}" if twins else short
    return found


def _bare(name: str) -> str:
    """Return a C++ name without return type, namespaces, parameters and casts of arguments."""
    bare = re.sub(r"\((int|bool|unsigned int)\)", "", name.removeprefix("void "))
    bare = re.sub(r"^((\w+|<unnamed>|\(anonymous namespace\))::)+", "", bare)
    return re.sub(r"\([^()<>]*(\([^()]*\)[^()<>]*)*\)$", "", bare) or name
