"""Answers which engines cuDNN has for the convolutions of networks, on GPUs that are not here.

`hpcsweep.submit.support` runs this module as a program: a question comes in on stdin, the answer
goes out on stdout, one JSON object each. A crash of the library ends this process alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from hpcsweep import search_path
from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.vendor import cudnn_graph
from hpcsweep.measure import inputs
from hpcsweep.measure.data.loaders import words
from hpcsweep.records import asdict


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the convolutions of the `cases`, and on each of the `devices` the engines of those.

    `known` are, for each device, the keys of convolutions that need no answer. With `here`, return
    the properties of that device of this machine.
    """
    if "here" in question:
        return cudnn_graph.properties_here(cudnn_graph.load(), question["here"])
    search_path.use(question["search_path"])
    cases = [_convolutions(question["workload"], axes) for axes in question["cases"]]
    reply: dict[str, Any] = {"cases": cases, "cudnn": None, "engines": {}}
    wanted = {**question["convolutions"]}
    wanted |= {call["key"]: call["shape"] for case in cases for call in case.get("calls", ())}
    try:
        library = cudnn_graph.load()
        for gpu, properties in question["devices"].items():
            graphs, answered = cudnn_graph.Graphs.of(library, properties), question["known"][gpu]
            reply["engines"][gpu] = {
                key: graphs.ask(ConvShape(**shape))
                for key, shape in wanted.items()
                if key not in answered
            }
    except LibraryUnusable as error:
        return {**reply, "lacking": str(error)}
    return {**reply, "cudnn": library.version}


def _convolutions(workload: str, axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the convolution calls of a case, or why they are unknown."""
    try:
        shapes = inputs.shapes(workload, json.dumps(axes))
    except Exception as error:  # noqa: BLE001 - a factory runs whatever its author wrote
        return {"unchecked": words(error)}
    calls = [
        {"layer": layer, "key": shape.unique_key, "flops": shape.flops, "shape": asdict(shape)}
        for layer, shape in shapes.convolutions
    ]
    return {"calls": calls}


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # where a factory may print
        _answer = answer(json.load(sys.stdin))
    json.dump(_answer, sys.stdout)
