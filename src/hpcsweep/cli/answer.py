"""What a command answers: text for people, or with `--json` one document for machines.

A document is a JSON object on stdout, alone: `hpcsweep` (the version of its shape), `command`, the
fields of the answer, `messages` (level, text and remedy of what was told besides), and `error`
where something was wrong. Lists (`sweeps`, `comparisons`, ...) are lists, whatever their length.
Everything else goes to stderr.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, TextIO, cast

import click

from hpcsweep.errors import HpcsweepError, UsageError
from hpcsweep.messages import Message
from hpcsweep.text import folded, printable

VERSION: Final = 1  # of the shape of documents; a field that changes its meaning raises it
_BLOCK: Final = 1000  # pieces of a document that are printed at once: few writes, little memory
_ENCODER: Final = json.JSONEncoder(allow_nan=False)


@dataclass
class Mode:
    """How this call of the program prints."""

    command: str = ""
    json: bool = False
    quiet: bool = False
    whole: bool = False  # tables with every row
    done: bool = False  # the document is out
    messages: list[Message] = field(default_factory=list)  # what was told besides the answer


mode = Mode()


def reset() -> None:
    """Begin a call of the program."""
    global mode  # noqa: PLW0603 - of the process, as its streams are
    mode = Mode()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The record and the text of an answer, of which one is made; how the command ends.

    A record may hold iterators, whose elements are printed as they come. `files` were written. A
    `copy` is the text of a file: a pipe gets it as it is.
    """

    record: Callable[[], Mapping[str, Any]]
    text: Callable[[], str | Iterable[str]]
    code: int = 0
    files: Sequence[Path | None] = ()
    error: HpcsweepError | None = None
    copy: bool = False

    def show(self) -> int:
        """Print it; return the exit code, or raise its error."""
        # None: of a file that nobody asked for
        written = [str(path) for path in self.files if path]
        if mode.json:
            record = {**self.record()}
            if written:
                record["files"] = written
            document(record, self.error)
        else:
            text = self.text()
            for line in [text] if isinstance(text, str) else text:
                show(line, copy=self.copy)
            for path in written:
                show(f"   {path}", copy=self.copy)
        if self.error:
            raise self.error
        return self.code


def document(
    record: Mapping[str, Any], error: BaseException | None = None, text: str = "", code: int = 0
) -> None:
    """Print the document, with what was wrong."""
    head = {"hpcsweep": VERSION, "command": mode.command, **record}
    if error:
        kind = type(error).__name__
        code = code or getattr(error, "exit_code", 1)
        head["error"] = {"kind": kind, "message": text or str(error), "exit_code": code}
    head["messages"] = map(asdict, mode.messages)  # also those of the iterators before
    pieces = _encoded(head)
    while block := list(islice(pieces, _BLOCK)):
        show("".join(block), end="")
    show("", flush=True)
    mode.done = True


def tell(message: Message) -> None:
    """Print a message at once: progress to stdout, all else, and beside a document, to stderr."""
    # progress may repeat itself: rounds, chunks
    if message.level != "progress" and message in mode.messages:
        return  # who looks at a thing twice tells it twice
    mode.messages.append(message)
    if not mode.quiet:
        text = str(message)
        lines = [text] if "\n" in text else folded([text], width())  # a job script stays whole
        aside = mode.json or message.level != "progress"
        show("\n".join(lines), file=sys.stderr if aside else sys.stdout, flush=True)


def width() -> int | None:
    """Return the columns of the terminal; a file or a pipe gets whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def refuse_json(why: str) -> None:
    """Raise `UsageError` where what is asked cannot be one document."""
    if mode.json:
        raise UsageError(f"--json prints one document; {why}")


def everywhere(group: click.Group) -> None:
    """Give each command of a group `--json`, and print the `Answer` that it returns."""
    json_option = click.option(
        "--json",
        is_flag=True,
        is_eager=True,  # before --format json
        expose_value=False,
        callback=_take_json,
        help="Print one JSON document.",
    )
    for command in group.commands.values():
        json_option(command)
        assert command.callback  # noqa: S101 - for the type checker
        command.callback = _answering(command.callback)


def _take_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if not ctx.resilient_parsing:  # as `hpcsweep config` looks at every command
        mode.json = value


def _answering(work: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(work)
    def answering(*args: Any, **kwargs: Any) -> Any:  # a command's
        mode.command = click.get_current_context().command_path.partition(" ")[2]
        result = work(*args, **kwargs)
        return result.show() if isinstance(result, Answer) else result

    return answering


def _encoded(value: object) -> Iterator[str]:
    """Yield JSON; the elements of an iterator one by one, so that a million are never in memory."""
    try:
        yield _ENCODER.encode(value)  # most values are plain, and to look at each is slow
    except (TypeError, ValueError):
        yield from _in_pieces(value)


def _in_pieces(value: object) -> Iterator[str]:
    if isinstance(value, Iterator):
        yield "["
        for place, element in enumerate(value):
            if place:
                yield ", "
            yield from _encoded(element)
        yield "]"
    elif isinstance(value, Mapping) and any(isinstance(item, Iterator) for item in value.values()):
        for place, (name, inner) in enumerate(value.items()):
            yield f"{', ' if place else '{'}{json.dumps(name)}: "
            yield from _encoded(inner)
        yield "}"
    else:
        yield json.dumps(_finite(value))


def _finite(value: Any) -> Any:  # what JSON can hold
    """Return a value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def reopen_closed() -> None:
    """Open /dev/null in place of closed standard streams, or children would print into a shard."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


@contextmanager
def forgiving() -> Iterator[None]:
    """Discard output that cannot be written while the block runs, instead of raising."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Forgiving(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def show(
    text: str,
    *,
    end: str = "\n",
    file: TextIO | None = None,
    flush: bool = False,
    copy: bool = False,
) -> None:
    """Print text, with control characters shown; of a `copy` of a file on a terminal alone."""
    stream = file or sys.stdout
    shown = text if copy and not stream.isatty() else printable(text)
    try:
        print(shown, end=end, file=stream, flush=flush)
    except UnicodeEncodeError:  # a name that is not UTF-8, or a locale that has not every letter
        code = stream.encoding or "ascii"
        escaped = shown.encode(code, "backslashreplace").decode(code)
        print(escaped, end=end, file=stream, flush=flush)


def discard(stream: TextIO) -> None:
    """Send what a stream still holds, and all that follows, to /dev/null."""
    with suppress(OSError, ValueError):  # in tests it may be no file
        # Python flushes at its end, and would complain of the closed pipe once more
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class _Forgiving:
    """A text stream that discards all output after the first write that fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            discard(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            discard(self._stream)
