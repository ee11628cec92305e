"""What torch sees on this machine, as one line of JSON: the process that `doctor --deep` starts.

It asks the questions that a worker asks before its first point, so both give the same answer.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torchvision  # noqa: F401 - does not import where the two are not of one release

from hpcsweep.errors import Refused
from hpcsweep.measure.machine import fit, provenance


def report() -> dict[str, Any]:
    """Return torch's threads and libraries, the GPU if there is one, and why it cannot be used."""
    told = {
        "threads": torch.get_num_threads(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "gpu": "",
        "refused": "",
    }
    return told | (_gpu() if torch.cuda.is_available() else {})


def _gpu() -> dict[str, str]:
    device = provenance.device("cuda")
    code = " ".join(torch.cuda.get_arch_list())
    cudnn = torch.backends.cudnn.version()
    refused = ""
    try:
        fit.check_code(device)
    except Refused as error:
        refused = str(error)
    gpu = f"{device.name} ({fit.chip(device)}), cuDNN {cudnn}, code for {code}"
    return {"gpu": gpu, "refused": refused}


if __name__ == "__main__":
    print(json.dumps(report()))  # noqa: T201 - what it is for
