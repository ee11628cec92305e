"""What can go wrong with an algorithm before anything is timed."""

from __future__ import annotations

from collections.abc import Sequence

from hpcsweep import catalog
from hpcsweep.errors import HpcsweepError, UsageError, suggest

_SHOWN = 3  # layers in a message of two lines; of the others their number is told


class UnknownAlgorithm(UsageError):
    """A name that is not in the taxonomy."""

    def __init__(self, name: object) -> None:
        names = ", ".join(catalog.ALGORITHMS)
        hint = suggest(str(name), catalog.ALGORITHMS)
        super().__init__(f"unknown convolution algorithm '{name}'{hint}\nthere are: {names}")


class _Refusal(HpcsweepError):
    """Some layers cannot run the requested algorithm, and the policy forbids a fallback."""

    def __init__(self, refused: Sequence[tuple[str, str]], convolutions: int) -> None:
        """Take (layer, ``algorithm: reason``) pairs and the number of convolution calls."""
        self.refused = tuple(refused)
        first = "; ".join(f"{layer or 'the network'}: {why}" for layer, why in refused[:_SHOWN])
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        super().__init__(
            f"{len(refused)} of {convolutions} convolutions cannot run as asked: {first}{more}\n"
            "with `unsupported: fallback` they run the framework's default"
        )


class Unsupported(_Refusal):
    """Policy `skip`: the point is not measured; its row says `unsupported`."""


class AlgorithmError(_Refusal):
    """Policy `error`: the point is not measured; its row says `error`."""


class LibraryUnusable(HpcsweepError):
    """A convolution library that is missing, too old, or of another major version."""
