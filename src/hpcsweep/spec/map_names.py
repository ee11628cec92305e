"""Short names of maps of algorithms, for headings and labels; a point's id depends on the map only.

A sweep file may give names under `maps`. Any other map is called `map-` and the first digits of a
checksum, so it has the same name in every sweep and command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hpcsweep.catalog import ALGORITHMS
from hpcsweep.point import MAP_DIGITS, canonical_json, map_name
from hpcsweep.spec.document import Document
from hpcsweep.spec.space import Sweep


def check(doc: Document, maps: Mapping[str, Mapping[str, str]], sweep: Sweep) -> Sweep:
    """Return the sweep with the names of its maps.

    Raises:
        SpecError: two names are of one map, a name is that of an algorithm or of no map in use.
    """
    named: dict[str, str] = {}
    used = {canonical_json(value) for value in sweep.values("algorithm")}
    for name, layers in maps.items():
        text = canonical_json(layers)
        if name in ALGORITHMS:
            raise doc.complaint(("maps", name), "is the name of an algorithm, needs another one")
        if text in named:
            raise doc.complaint(("maps", name), f"is the same map as '{named[text]}'")
        if text not in used:
            raise doc.complaint(("maps", name), "no axis `algorithm` of this sweep has this map")
        named[text] = name
    return replace(sweep, maps=named)


def short_names(maps: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a name for each canonical map: the given one, else a checksum long enough to tell."""
    others = [layers for layers in dict.fromkeys(maps) if layers not in given]
    for digits in range(MAP_DIGITS, 65):
        found = {layers: map_name(layers, digits) for layers in others}
        if len({*found.values(), *given.values()}) == len(found) + len(given):
            break
    return {**given, **found}


def legend(names: Mapping[str, str]) -> list[str]:
    """Return a line for each map that says what its name stands for."""
    return [f"{name}: {layers}" for layers, name in names.items()]
