"""What exists, without torch: axes, settings, models, GPUs, and the columns of the tables."""

from hpcsweep.catalog.axes import (
    ALGORITHMS,
    AUTO,
    AUTOTUNE,
    AXES,
    DATASETS,
    DTYPES,
    INJECTIONS,
    SETTINGS,
    VISIT,
    WORKLOADS,
    Axis,
    Role,
    Setting,
    axes_of,
    axes_with,
    axis_defaults,
    plan,
    setting_defaults,
    settings_of,
    sizes_of_inputs,
)
