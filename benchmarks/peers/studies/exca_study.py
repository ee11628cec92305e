"""Run the study with exca's process pool."""

import os
from pathlib import Path

from exca_points import Points
from work import write_table

if __name__ == "__main__":
    out = os.environ["STUDY_OUT"]
    count = int(os.environ["STUDY_POINTS"])
    pool = {"cluster": "processpool", "max_jobs": 2, "folder": Path(out) / "cache"}
    found = Points(infra=pool).rows(range(count))
    write_table(list(zip(range(count), found, strict=True)), out)
