"""Run a point of the study in Hydra's multirun with joblib; the last command merges the rows."""

import os
import sys
from pathlib import Path

import hydra
from work import merge, write_row


@hydra.main(version_base=None, config_path=None)
def point(config):
    """Measure the point into the folder of its run."""
    out = os.environ["STUDY_OUT"]
    write_row(config.number, out, Path(out, f"{config.number}.row"))


if __name__ == "__main__":
    if sys.argv[1:] == ["merge"]:
        merge(Path(os.environ["STUDY_OUT"]), os.environ["STUDY_OUT"])
    else:
        point()
