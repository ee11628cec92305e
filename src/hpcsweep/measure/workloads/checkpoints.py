"""Writes and reads checkpoints of a training, to resume it and to keep the best weights.

After an epoch, `<point id>.last.pt` is written beside the shards if the previous one is a minute
old, and removed when the point is done. With `save_every: N` it stays, with `<point id>.best.pt`
(highest validation accuracy, then lowest loss, over all attempts) and `<point id>.epoch<n>.pt` of
every N-th epoch. `save_final` writes the weights alone, in the form that `weights:` reads.

A file is written under another name and then moved, so it is never partial. A checkpoint that
cannot be read is reported and not used; the training then starts at the beginning.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from hpcsweep import environment, files, sources
from hpcsweep.errors import ResultsError, UsageError, first_line
from hpcsweep.measure.workloads.trainer import Result, Trainer, TrainingHistory
from hpcsweep.point import Point

# Another one is told, and not read.
FORMAT: Final = 1
# So much of a training is lost at most, and an epoch.
AUTOMATIC_SECONDS: Final = 60.0


@dataclass
class Checkpoints:
    """The checkpoints of one point; without a folder (no supervisor) nothing is written."""

    point: Point
    trainer: Trainer
    history: TrainingHistory
    resumed: int | None = None
    kept: dict[str, None] = field(default_factory=dict)
    saved_at: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> Path | None:
        named = os.environ.get(environment.ARTIFACTS)
        return Path(named) if named else None

    def resume(self) -> None:
        """Resume from the sweep's file, else from an earlier attempt's last checkpoint.

        Raises:
            UsageError: the named file cannot be used.
        """
        named = self.point.measure["resume_from"]
        if named:
            path = sources.file(named)
            done = self._load(path)
            if done >= self.point.axes["epochs"]:
                raise UsageError(f"{path}: has {done} epochs already; nothing is left to train")
            return
        for path in self._earlier():
            try:
                self._load(path)
            except UsageError as error:  # noqa: PERF203 - there are few
                print(f"not resumed: {error}", file=sys.stderr)  # noqa: T201 - the attempt's log
            else:
                return

    def after_epoch(self) -> None:
        """Write the checkpoints that are due after an epoch."""
        every = self.point.measure["save_every"]
        old = time.monotonic() - self.saved_at >= AUTOMATIC_SECONDS
        if self.folder is None or not (every or old):
            return
        state = self._state()
        # first, since a job that ends now resumes from it
        self._save("last", state)
        if not every:
            return
        validated = self.history.validated
        if validated and all(_rank(validated[-1]) > _rank(earlier) for earlier in validated[:-1]):
            self._save("best", state)
        if self.trainer.epoch % every == 0:
            self._save(f"epoch{self.trainer.epoch}", state)

    def finish(self) -> None:
        """Write the final weights if wanted; remove checkpoints that only serve to resume."""
        if self.folder is None:
            return
        if self.point.measure["save_final"]:
            self._save("final", self.trainer.state_dict()["model"])
        if not self.point.measure["save_every"]:
            self.kept.pop(self._path("last").name, None)
            for path in self._earlier():
                path.unlink(missing_ok=True)

    def _state(self) -> dict[str, Any]:
        history = self.history
        return {
            "format": FORMAT,
            "trainer": self.trainer.state_dict(),
            "learned": [asdict(result) for result in history.learned],
            "validated": [asdict(result) for result in history.validated],
            "before": asdict(history.before) if history.before else None,
            "best": max((result.accuracy for result in history.validated), default=None),
        }

    def _load(self, path: Path) -> int:
        """Restore a state completely, unless it is a finished training; return its epochs.

        `UsageError`, and no change, if it cannot be read or does not fit.
        """
        state = _read(path)
        done = int(state["trainer"]["epoch"])
        if done >= self.point.axes["epochs"]:
            return done
        # of a state that fits only in part nothing may remain
        before = self.trainer.state_dict()
        try:
            learned = [Result(**result) for result in state["learned"]]
            validated = [Result(**result) for result in state["validated"]]
            at_first = Result(**state["before"]) if state["before"] else None
            self.trainer.load_state_dict(state["trainer"])
        except (AttributeError, KeyError, ValueError, RuntimeError, TypeError) as error:
            self.trainer.load_state_dict(before)
            reason = first_line(error)
            raise UsageError(f"{path}: does not fit this training ({reason})") from error
        self.history.learned = learned
        self.history.validated = validated
        self.history.before = at_first
        self.resumed = done
        return done

    def _earlier(self) -> list[Path]:
        """Return this point's last checkpoints, of any attempt and submission, newest first."""
        if self.folder is None:
            return []
        paths = self.folder.parent.glob(f"*/{self.point.point_id}.last.pt")
        return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)

    def _path(self, kind: str) -> Path:
        assert self.folder is not None  # noqa: S101 - asked by every caller
        return self.folder / f"{self.point.point_id}.{kind}.pt"

    def _save(self, kind: str, state: object) -> None:
        """Write a file; on a full disk, note that it is missing and go on."""
        path = self._path(kind)
        try:
            with files.replacing(path) as file:
                torch.save(state, file)
        except (ResultsError, OSError, RuntimeError) as error:
            reason = first_line(error).removeprefix(f"{path}: ").partition(";")[0]
            self.kept[f"no {path.name} ({reason})"] = None
            return
        self.saved_at = time.monotonic()
        self.kept[path.name] = None


def _rank(result: Result) -> tuple[float, float]:
    """Return the sort key of epochs: accuracy, then lower loss."""
    return result.accuracy, -result.loss


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        known = (state["format"], int(state["trainer"]["epoch"]))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged file may raise anything
        advice = "weights alone go into `weights`"
        raise UsageError(f"{path}: is no checkpoint ({first_line(error)}); {advice}") from error
    if known[0] != FORMAT:
        raise UsageError(f"{path}: has format {known[0]}, this version reads {FORMAT}")
    return state
