"""Predicts times that were not measured, from tables that were: see docs/prediction.md."""

from hpcsweep.text import Word


class Basis(Word):
    """What a forecast rests on, the firmest first: the column `basis`."""

    MEASURED = "measured", "measured points of the same network and algorithm"
    LINES = (
        "lines",
        "a line over the work, corrected at measured points of this network (--until-error)",
    )
    SIZES = "sizes", "smaller and larger sizes or batches of this network, with this algorithm"
    NETWORKS = "networks", "layers of other networks, or sizes on one side only"
    ALGORITHMS = "algorithms", "layers under other algorithms, on this GPU"
    SETTINGS = "settings", "layers with other settings, such as threads, on this GPU"
    FOREIGN = "foreign", "convolutions that another program measured on this GPU"
    GPUS = "gpus", "layers on other GPUs and the peaks of all"
