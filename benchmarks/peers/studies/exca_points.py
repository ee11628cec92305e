"""The study of exca: a function over many items, whose results are cached (MapInfra)."""

# exca reads the annotations, so they are no strings
import os
from collections.abc import Iterable, Iterator

import exca
import pydantic
from work import measure


class Points(pydantic.BaseModel):
    """Items are points; the cache is what a second call goes on from."""

    infra: exca.MapInfra = exca.MapInfra()

    @infra.apply(item_uid=str)
    def rows(self, numbers: Iterable[int]) -> Iterator[float]:
        """Yield a row per point."""
        for number in numbers:
            yield measure(number, os.environ["STUDY_OUT"])
