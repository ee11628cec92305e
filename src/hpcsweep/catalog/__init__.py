"""What exists, without torch: axes, settings, models, GPUs, and the columns of the tables."""

from hpcsweep.catalog.axes import (
    ALGORITHMS,
    AUTO,
    AUTOTUNE,
    AXES,
    DATASETS,
    DTYPES,
    INJECTIONS,
    NETWORK,
    REPETITIONS,
    SETTINGS,
    VISIT,
    WORKLOADS,
    Axis,
    Setting,
    axes_of,
    axis_defaults,
    setting_defaults,
    settings_of,
)
