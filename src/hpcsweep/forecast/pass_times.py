"""What rows teach of the times of points: curves over work by kind, and what holds for all."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Final

from hpcsweep.forecast import curves
from hpcsweep.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from hpcsweep.forecast.curves import Curve
    from hpcsweep.forecast.past_rows import Kind, PointTime

_LEVEL: Final = 0.9
_FEWEST: Final = 5  # errors from which a quantile is taken; rows from which a line is


@dataclass(frozen=True)
class Beside:
    """Seconds beside the passes: of every point, per second of a pass, and of what is made."""

    fixed: float = 0.5
    slope: float = 4.0
    worker: float = 8.0  # with its first network
    network: float = 0.5
    layer_factor: float = 1.0
    n: float = 0.0  # timed passes, as a rule

    def at(self, pass_s: float) -> float:
        """Return the seconds beside the passes of a point."""
        return self.fixed + self.slope * pass_s


@dataclass(frozen=True)
class Learnt:
    """The rows of one device and workload, and what was made of them."""

    rows: Sequence[PointTime] = ()
    beside: Beside = field(default_factory=Beside)
    pass_s: Mapping[Kind, Curve] = field(default_factory=dict)
    extra_s: Mapping[Kind, Curve] = field(default_factory=dict)
    predicted: Mapping[Kind, Curve] = field(default_factory=dict)  # seconds of a pass
    width_of_predicted: float = 1.0

    @property
    def sources(self) -> Counter[str]:
        """Return how many rows each sweep gave."""
        return Counter(row.sweep for row in self.rows)

    def correction(self, model: str, algorithm: str, *, without: str = "") -> float | None:
        """Return what the table's passes are wrong by; None where there is no row.

        An algorithm is as much slower than another as for other networks. `without` leaves a
        network out.
        """
        known = {pair: ratio for pair, ratio in self._ratios.items() if pair[0] != without}
        of_model = {name: ratio for (one, name), ratio in known.items() if one == model}
        of_algorithm = {one: ratio for (one, name), ratio in known.items() if name == algorithm}
        in_proportion = [
            here * there / known[one, name]
            for name, here in of_model.items()
            for one, there in of_algorithm.items()
            if (one, name) in known
        ]
        ratios = in_proportion or (of_algorithm or of_model or known).values()
        return statistics.median(ratios) if ratios else None

    @cached_property
    def _ratios(self) -> dict[tuple[str, str], float]:
        """Return measured over tabulated seconds of a pass, by model and algorithm."""
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for row in self.rows:
            found[row.kind[0], row.kind[1]].append(row.pass_s / row.by_table)
        return {pair: statistics.median(ratios) for pair, ratios in found.items()}

    def width_of_measured(self, passes: float) -> float | None:
        """Return the factor by which points of so many passes are too low, nine times in ten."""
        true_s, said_s = list[float](), list[float]()
        for kind, curve in self.pass_s.items():
            extra = self.extra_s.get(kind)
            if extra is None or extra.works != curve.works:
                continue
            for (true, said), (more, said_more) in zip(
                curve.left_out(), extra.left_out(), strict=True
            ):
                true_s.append(passes * true + more)
                said_s.append(passes * said + said_more)
        return _upper(true_s, said_s, range(len(true_s)))

    def width_of_others(self) -> float | None:
        """Return the factor by which passes of a network that was left out are too low."""
        said = {pair: self.correction(*pair, without=pair[0]) for pair in self._ratios}
        known = {pair: found for pair, found in said.items() if found}
        true = [self._ratios[pair] for pair in known]
        return _upper(true, list(known.values()), [model for model, _ in known])


def learn(rows: Sequence[PointTime], predicted: Sequence[PointTime] = ()) -> Learnt:
    """Return what rows teach; `predicted` ones have times of passes alone."""
    beside = _beside(rows) if rows else Beside()
    rows = [_settled(row, beside) for row in rows]
    widths = sorted(row.width for row in predicted)
    return Learnt(
        rows,
        beside,
        {kind: curves.fit((row.work, row.pass_s) for row in same) for kind, same in _by(rows)},
        {
            kind: curves.fit(((row.work, row.extra_s or 0.0) for row in same), beside.fixed)
            for kind, same in _by([row for row in rows if row.extra_s is not None])
        },
        {kind: curves.fit((row.work, row.pass_s) for row in same) for kind, same in _by(predicted)},
        widths[math.ceil(_LEVEL * len(widths)) - 1] if widths else 1.0,
    )


def _beside(rows: Sequence[PointTime]) -> Beside:
    """Return what points take beside their passes, from rows of this sweep if it has enough."""
    known = [row for row in rows if row.extra_s is not None]
    own = [row for row in known if row.sweep == rows[0].sweep]
    usual = own if len(own) >= _FEWEST else known
    found = Beside(
        layer_factor=_median([row.layer_factor for row in usual if row.layer_factor], 1.0),
        n=_median([row.n for row in usual], 0.0),
    )
    plain = [(row.pass_s, max(row.extra_s or 0.0, 1e-3)) for row in usual if not row.fresh]
    if len(plain) >= _FEWEST:
        fixed, slope = curves.line(plain)
        found = replace(found, fixed=fixed, slope=slope)
    return replace(
        found,
        worker=_excess(known, "worker", found, found.worker),
        network=_excess(known, "network", found, found.network),
    )


def _excess(rows: Sequence[PointTime], fresh: str, beside: Beside, usual: float) -> float:
    """Return the seconds that it takes to make something, as a rule."""
    more = [(row.extra_s or 0.0) - beside.at(row.pass_s) for row in rows if row.fresh == fresh]
    return max(_median(more, usual), 0.0)


def _settled(row: PointTime, beside: Beside) -> PointTime:
    """Return a row without what was made for it."""
    if row.extra_s is None or not row.fresh:
        return row
    return replace(row, extra_s=min(row.extra_s, beside.at(row.pass_s)))


def _by(rows: Sequence[PointTime]) -> list[tuple[Kind, list[PointTime]]]:
    found: dict[Kind, list[PointTime]] = defaultdict(list)
    for row in rows:
        found[row.kind].append(row)
    return list(found.items())


def _median(values: Sequence[float], missing: float) -> float:
    return statistics.median(values) if values else missing


def _upper(true: Sequence[float], said: Sequence[float], parts: Sequence[Hashable]) -> float | None:
    """Return the factor by which times are too low, nine times in ten; None from too few parts."""
    if len(true) < _FEWEST:
        return None
    from hpcsweep.forecast import intervals  # noqa: PLC0415 - scipy takes half a second

    return intervals.upper(true, said, parts)
