"""The record of a submission, `manifest.json`, and the version of the layout of results."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import environment, files
from hpcsweep.catalog import LAUNCHERS
from hpcsweep.errors import ResultsError
from hpcsweep.store import typed_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# History of the layout of results folders. 1: first release.
LAYOUT: Final = 1
IMPORT: Final = "import"  # the profile of tables of other programs
LAYOUT_FILE: Final = "layout.json"  # in the folder of a sweep
_MASKED: Final = "masked"
_OPTIONS: Final = ("sbatch_options", "wrapper_options")  # keys of a profile
_OPTION: Final = re.compile(r"(--[a-z0-9-]+(?:[=\s]|$))?(.*)", re.DOTALL)
_NODE: Final = re.compile(r"[\w.-]*", re.ASCII)  # the name of a node; empty: any
_MOST: Final = 1_000_000  # chunks, rounds, bytes of a layout file: a larger number is damage
_REMEDY: Final = (
    "restore it, or remove the file if none of this submission's jobs lives: "
    "rows that were measured stay, and submit sends what is missing"
)


class NewerLayout(ResultsError):
    """A newer version wrote the folder: this one may neither read it nor write into it."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of sweep and profile that the measuring side needs."""

    gpu_name: str = ""  # regular expression for the name of the device; empty: any
    min_memory_gb: float | None = None
    point_timeout: float = 600.0  # seconds, for each epoch of a training
    kill_wait: float = 20.0  # seconds between the scheduler's SIGTERM and its SIGKILL
    signal_lead: float = 120.0  # seconds between the signal to finish and the end of the job
    shortened: bool = False  # its jobs ask for less than the profile's time, by the estimate
    workers: int = 1
    search_path: tuple[str, ...] = ()  # absolute folders in which the sweep's files are searched
    skip_dominated: bool = False
    known_oom: tuple[dict[str, Any], ...] = ()  # axes of points that ran out of memory


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One submission: its sweep, profile, options and size; who sent it, when and from where."""

    layout: int = LAYOUT
    id: str = ""
    sweep: str = ""
    workload: str = ""
    profile: str = ""
    launcher: str = ""
    gpu: str = ""
    rehearsal: bool = False
    sample: int | None = None
    round: int = 0  # larger than the round of every earlier submission of the sweep
    again: int = 0  # number of earlier runs of the sweep: each --again begins another run
    created_at: str = ""  # UTC, ISO 8601
    host: str = ""
    user: str = ""
    argv: tuple[str, ...] = ()
    spec: str = ""  # the sweep file's path
    spec_sha256: str = ""
    hpcsweep_version: str = ""
    git_sha: str | None = None
    git_dirty: bool | None = None
    maps: dict[str, str] = field(default_factory=dict)  # names of maps, by their canonical JSON
    templates: tuple[str, ...] = ()  # of the job script; the user's own, not those shipped
    run: RunSettings = field(default_factory=RunSettings)
    source: str = ""  # where its rows were imported from; empty: submitted here
    source_path: str = ""  # of another program's file
    source_sha256: str = ""  # of what that file held
    profile_fields: dict[str, Any] = field(default_factory=dict)  # keys that `run` does not hold
    nodes: dict[str, int] = field(default_factory=dict)  # chunks by node, in order; empty: any
    chunks: int = 0
    points: int = 0
    seconds: float = 0.0  # expected, of all chunks together

    @property
    def is_local(self) -> bool:
        """Whether its chunks run on the submitting machine, not in Slurm's queue."""
        return self.launcher in LAUNCHERS and not LAUNCHERS[self.launcher].in_slurm

    @property
    def is_profiled(self) -> bool:
        """Whether its jobs run under a profiler, so that its rows hold no times."""
        return str(self.profile_fields.get("wrapper", "none")) != "none"

    @property
    def chunks_of_nodes(self) -> Mapping[str, int]:
        """Number of chunks by node, in their order; those of any node have an empty name."""
        return self.nodes or {"": self.chunks}

    @property
    def gpus_per_job(self) -> int:
        """How many of its chunks a job runs side by side."""
        return int(self.profile_fields.get("gpus_per_job", 1))

    @property
    def profile_path(self) -> str:
        return str(self.profile_fields.get("path", ""))


def check_layout(folder: Path) -> bool:
    """Say whether a folder has a layout file; `NewerLayout`, or `ResultsError` if it is damaged."""
    path = folder / LAYOUT_FILE
    if not os.path.lexists(path):
        return False
    with files.opened(path, most=_MOST) as file:
        text = file.read()
    with suppress(ValueError, RecursionError, AttributeError):
        layout = json.loads(text).get("layout")
        if type(layout) is int and layout > 0:
            _refuse_newer(path, layout)
            return True
    raise ResultsError(f"{path}: damaged; if this hpcsweep wrote the folder, remove the file")


def keep_layout(folder: Path) -> None:
    """Write the layout file if it is missing; `NewerLayout` if a newer version wrote it."""
    if not check_layout(folder):
        files.write_json(folder / LAYOUT_FILE, {"layout": LAYOUT})


def _refuse_newer(path: Path, layout: object) -> None:
    if isinstance(layout, int) and layout > LAYOUT:
        raise NewerLayout(
            f"{path}: written by a newer hpcsweep (layout {layout}, this "
            f"one knows {LAYOUT}); update hpcsweep to read it"
        )


def masked(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile without values that may be secret: variables, shell, options."""
    found = dict(profile)
    for key, value in profile.items():
        items = value if isinstance(value, list) else []
        # programs take secrets in any of these; the other keys are names and numbers
        if key == "env":
            variables = value if isinstance(value, dict) else {}
            found[key] = {name: _mask(name, text) for name, text in variables.items()}
        elif key in {"init", "setup"}:
            found[key] = [_mask("", line) for line in items]
        elif key == "then" and value:
            found[key] = _mask("", value)
        elif key in _OPTIONS:
            found[key] = [_mask_option(str(option)) for option in items]
    return found


def _mask(name: str, value: object) -> str:
    text = str(value)
    return text if not text or environment.readable(name, text) else _MASKED


def _mask_option(text: str) -> str:
    match = _OPTION.fullmatch(text)
    name, value = match.groups() if match else ("", text)
    return f"{name or ''}{_mask('', value)}"


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest; `ResultsError` where the folder cannot be written."""
    files.write_json(path, typed_json.sealed(typed_json.to_plain(manifest)))


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; `ResultsError` where it is damaged, `NewerLayout` from a newer version."""
    try:
        status = path.stat()
    except OSError:
        return _read(path)
    return _read(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache  # a command asks for the few manifests of a sweep many times
def _read(path: Path, *_stamp: int) -> Manifest:
    try:
        content = files.read_json(path)
        typed_json.prove(content)
        _refuse_newer(path, content.get("layout"))
        record = typed_json.from_plain(Manifest, {**content, "id": path.parent.name})
        _check(content, record)
    except NewerLayout:
        raise
    except ResultsError as error:
        raise ResultsError(f"{error}\n{_REMEDY}") from error
    except ValueError as error:
        raise ResultsError(f"{path}: damaged: {error}\n{_REMEDY}") from error
    return record


def _check(content: Mapping[str, Any], record: Manifest) -> None:
    """Raise `ValueError` for a value of the right type that no manifest can have.

    What names a file elsewhere is proved here, where the record is read: nobody may join it to a
    path before, and a manifest may come from another site.
    """
    if "layout" not in content:
        raise ValueError("it has no `layout`, as every manifest has")
    # readers count up to some of them: a huge one would fill their memory
    for name in ("chunks", "round", "again"):
        value = getattr(record, name)
        if not 0 <= value <= _MOST:
            raise ValueError(f"`{name}` cannot be {value!r:.20}")
    for name, chunks in record.nodes.items():
        # `retry` hands it to sbatch
        if not _NODE.fullmatch(name) or not 0 <= chunks <= record.chunks:
            raise ValueError(f"`nodes` cannot have {name!r:.80}: {chunks}")
    for name in ("sweep", "profile"):
        value = getattr(record, name)
        if value and not files.may_name_a_file(value):
            raise ValueError(f"`{name}` cannot be {value!r:.80}: it is the name of a file")
