"""Draws the pictures of `measuring_reasons.md`, one per trap, and the roofline of `analysis.md`.

::

    python docs/pictures.py            # docs/pictures/*.svg
    python docs/pictures.py FOLDER     # somewhere else; FOLDER/x.png with `--png`

Timelines are schematic and say so; figures come from where each caption says.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from hpcsweep.analysis import charts
from hpcsweep.analysis.roofline import rooflines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
WORK, WAIT, COPY, HOST, NOTE = "#2a6f97", "#d9d9d9", "#e07a5f", "#81b29a", "#3d3d3d"

Bar = tuple[float, float, str, str]  # begin, length, colour, text


def lanes(ax: Axes, rows: Sequence[tuple[str, Sequence[Bar]]], title: str) -> None:
    """Draw timelines, one row per name, time to the right."""
    for index, (_, bars) in enumerate(rows):
        for begin, length, colour, text in bars:
            ax.barh(-index, length, left=begin, height=0.62, color=colour, edgecolor="white")
            ink = "white" if colour in {WORK, COPY} else "black"
            ax.text(
                begin + length / 2, -index, text, ha="center", va="center", fontsize=7.5, color=ink
            )
    ax.set_yticks([-i for i in range(len(rows))], [name for name, _ in rows], fontsize=8)
    ax.set_xticks([])
    ax.set_title(title, fontsize=9, loc="left")
    for side in ("top", "right", "bottom", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)


def span(ax: Axes, begin: float, end: float, y: float, text: str) -> None:
    """Mark what a timer reads."""
    arrow = {"arrowstyle": "<->", "color": NOTE, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (begin, y), (end, y), arrowprops=arrow)
    ax.text((begin + end) / 2, y - 0.08, text, ha="center", va="top", fontsize=8, color=NOTE)


def host_copies() -> Figure:
    """Draw a layer call that allocates and copies, with an event pair around all of it."""
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.2, 2.9), layout="constrained")
    steps = [
        (0, 1.1, WAIT, "malloc"),
        (1.1, 2.1, COPY, "copy in"),
        (3.2, 1.6, COPY, "weights in"),
        (4.8, 0.8, WORK, "conv"),
        (5.6, 1.9, COPY, "copy out"),
        (7.5, 0.9, WAIT, "free"),
    ]
    lanes(top, [("one layer", steps)], "What a published sweep timed as a convolution (schematic)")
    span(top, 0, 8.4, -0.5, '"layer time"')
    top.set_ylim(-1.15, 0.5)
    layer = [(i * 0.85, 0.8, WORK, "conv") for i in range(4)]
    lanes(bottom, [("four layers", layer)], "hpcsweep: tensors stay on the device")
    span(bottom, 0, 0.8, -0.5, "layer time")
    bottom.set_xlim(top.get_xlim())
    bottom.set_ylim(-1.15, 0.5)
    return figure


def waiting() -> Figure:
    """Draw synchronising after every layer, and what it cost a ResNet-152."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.2, 2.6), layout="constrained", width_ratios=(2, 1)
    )
    host = [(i * 2.2, 0.5, HOST, "") for i in range(4)]
    idle = [(i * 2.2 + 0.5, 1.0, WORK, "layer") for i in range(4)]
    waits = [(i * 2.2 + 0.5, 1.7, WAIT, "wait") for i in range(4)]
    ahead = [(i * 0.55, 0.5, HOST, "") for i in range(4)]
    packed = [(0.5 + i * 1.05, 1.0, WORK, "layer") for i in range(4)]
    names = ("host, waits", "GPU", "host, ahead", "GPU ")
    bars = (host + waits, idle, ahead, packed)
    lanes(
        left,
        list(zip(names, bars, strict=True)),
        "Four layers; green: the host issues one (schematic)",
    )
    right.bar(["a timer that\nwaits per layer", "without"], [406.9, 193.9], color=[COPY, WORK])
    right.bar_label(right.containers[0], fmt="%.1f", fontsize=8)
    right.set_ylabel("ResNet-152, forward, ms", fontsize=8)
    right.set_ylim(0, 480)
    right.tick_params(labelsize=8)
    right.set_title("BVLC/caffe#4453", fontsize=9, loc="left")
    return figure


def empty_queue() -> Figure:
    """Draw an event pair on an empty queue, and behind a delay."""
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.2, 3.6), layout="constrained")
    lanes(
        top,
        [
            (
                "host",
                [
                    (0, 0.4, HOST, "event"),
                    (0.4, 1.9, HOST, "issue kernel"),
                    (2.3, 0.4, HOST, "event"),
                ],
            ),
            ("GPU", [(2.0, 0.9, WORK, "kernel")]),
        ],
        "Empty queue: the first event is over before the kernel arrives (schematic)",
    )
    span(top, 0.4, 2.9, -1.5, "0.24 ms")
    top.set_ylim(-2.1, 0.5)
    lanes(
        bottom,
        [
            (
                "host",
                [
                    (0, 0.6, HOST, "delay"),
                    (0.6, 0.4, HOST, "event"),
                    (1.0, 1.9, HOST, "issue kernel"),
                    (2.9, 0.4, HOST, "event"),
                ],
            ),
            (
                "GPU",
                [(0.3, 3.4, WAIT, "delay, as long as the host needs"), (3.7, 0.9, WORK, "kernel")],
            ),
        ],
        "Behind a delay: host ahead, events next to the kernel",
    )
    span(bottom, 3.7, 4.6, -1.5, "0.09 ms")
    bottom.set_ylim(-2.1, 0.5)
    top.set_xlim(bottom.get_xlim())
    return figure


def lost_backward() -> Figure:
    """Draw a range that belongs to a thread, and the thread that autograd runs in."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.2, 2.4), layout="constrained", width_ratios=(2, 1)
    )
    lanes(
        left,
        [
            (
                "main thread",
                [
                    (0, 2.2, WORK, "forward"),
                    (2.2, 0.5, WORK, ""),
                    (2.7, 3.6, WAIT, "waits"),
                    (6.3, 0.8, WORK, ""),
                ],
            ),
            ("autograd", [(2.7, 3.6, COPY, "backward")]),
            ("push/pop sees", [(0, 2.7, HOST, ""), (6.3, 0.8, HOST, "")]),
            ("start/end sees", [(0, 7.1, HOST, "the whole step")]),
        ],
        "Forward, loss, backward, optimizer (schematic)",
    )
    phases, counts = ("forward", "loss", "backward", "optimizer"), (89, 2, 1, 6)
    right.barh(phases[::-1], counts[::-1], color=[WORK, COPY, WORK, WORK])
    right.bar_label(right.containers[0], fontsize=8)
    right.set_xlim(0, 105)
    right.tick_params(labelsize=8)
    right.set_title("kernels in a published export", fontsize=9, loc="left")
    return figure


def coverage() -> Figure:
    """Draw how much of ResNet-50 a Winograd request really covers."""
    figure, ax = plt.subplots(figsize=(7.2, 1.9), layout="constrained")
    names = ("convolution calls (13 of 53)", "convolution FLOPs")
    shares = (100 * 13 / 53, 37.0)
    ax.barh(names, shares, color=WORK, label="ran winograd")
    rest = [100 - share for share in shares]
    ax.barh(names, rest, left=shares, color=WAIT, label="fell back to the default, as recorded")
    ax.bar_label(ax.containers[0], fmt="%.0f %%", label_type="center", fontsize=8, color="white")
    ax.set_xlim(0, 100)
    ax.invert_yaxis()
    ax.tick_params(labelsize=8)
    ax.set_xlabel("ResNet-50 at 224, algorithm: winograd; share in %", fontsize=8)
    ax.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return figure


def modules_and_calls() -> Figure:
    """Draw layers by module and by call."""
    figure, ax = plt.subplots(figsize=(7.2, 2.2), layout="constrained")
    names = ("resnet18", "resnet50", "resnet152")
    modules, calls = (52, 126, 364), (60, 158, 464)
    at = range(len(names))
    ax.barh(
        [i - 0.2 for i in at], modules, 0.38, color=WAIT, label="modules: a table keyed by name"
    )
    ax.barh([i + 0.2 for i in at], calls, 0.38, color=WORK, label="calls: what a pass does")
    for bars in ax.containers:
        ax.bar_label(bars, fontsize=8, padding=2)
    ax.set_yticks(list(at), names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 520)
    ax.tick_params(labelsize=8)
    ax.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return figure


def sparse_peaks() -> Figure:
    """Draw dense peaks, and the sparse ones that go around for the same GPUs."""
    figure, ax = plt.subplots(figsize=(7.2, 2.2), layout="constrained")
    names = ("L40S", "H100 SXM")
    at = range(len(names))
    ax.barh([i - 0.2 for i in at], (362, 989), 0.38, color=WORK, label="dense")
    ax.barh([i + 0.2 for i in at], (733, 1979), 0.38, color=COPY, label="with 2:4 sparsity")
    for bars in ax.containers:
        ax.bar_label(bars, fontsize=8, padding=2)
    ax.set_yticks(list(at), names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 2250)
    ax.set_xlabel("float16 tensor cores, TFLOP/s, as the vendor states them", fontsize=8)
    ax.tick_params(labelsize=8)
    ax.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return figure


def roofline() -> Figure:
    """Draw the sample export, as `hpcsweep roofline --example --out` does."""
    figure = plt.figure(figsize=(8.5, 6.4), layout="constrained")
    found = rooflines.read_roofline([rooflines.sample()])
    charts.fill_roofline(figure, found, found.pieces)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "host-copies": host_copies,
    "waiting": waiting,
    "empty-queue": empty_queue,
    "lost-backward": lost_backward,
    "coverage": coverage,
    "modules-and-calls": modules_and_calls,
    "sparse-peaks": sparse_peaks,
    "roofline": roofline,
}


def draw(folder: Path, suffix: str = ".svg") -> list[Path]:
    """Draw all pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "hpcsweep"  # so that the same picture is the same file
    mpl.rcParams["svg.fonttype"] = "none"
    paths = []
    for name, make in PICTURES.items():
        figure = make()
        paths.append(folder / f"{name}{suffix}")
        metadata = {"Date": None} if suffix == ".svg" else None
        figure.savefig(paths[-1], dpi=120, metadata=metadata)
        plt.close(figure)
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / "pictures")
    parser.add_argument("--png", action="store_true")
    arguments = parser.parse_args()
    for path in draw(arguments.folder, ".png" if arguments.png else ".svg"):
        print(path)  # noqa: T201 - a script
