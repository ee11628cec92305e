"""The words of hpcsweep, on one screen; docs/words.md is generated from them."""

from __future__ import annotations

from typing import Final

import click

from hpcsweep.cli.answer import Answer
from hpcsweep.errors import UsageError, suggest
from hpcsweep.text import folded

_WIDTH: Final = 79
WORDS: Final = {  # in the order in which a sweep meets them
    "point": "One configuration to measure: a value for each axis. Its id never changes.",
    "visit": "One measurement of a point. `measure: {repeats: 3}` makes three, apart in time.",
    "run": "All rows of a sweep from its first submission to `--again`, which begins the next.",
    "chunk": "The points that one task of a job, or one local process, measures in turn.",
    "rehearsal": "Points of a GPU that run on this machine's CPU, with `--cluster local`.",
    "control": "A fixed calculation, timed beside the points: is the machine itself slower?",
    "contended": "The flag of a point that shared the machine: threads waited, or the control "
    "was slow. Measured, but not valid.",
    "valid": "A row with status `ok` and no flag that makes its time doubtful.",
    "orphan": "A row of a point that the sweep file no longer has. Tables keep it, and mark it.",
    "held out": "What `predict --check` leaves out of the learning, to predict it, and to "
    "compare that with what was measured.",
}


@click.command("help")
@click.argument("topic", required=False)
@click.pass_context
def help_(ctx: click.Context, topic: str | None) -> Answer:
    """Explain a command, or the words of hpcsweep.

    \b
    hpcsweep help words
    hpcsweep help submit
    """
    whole = ctx.find_root()
    program = whole.command
    commands = program.commands if isinstance(program, click.Group) else {}
    if topic == "words":
        return Answer(record=lambda: {"words": WORDS}, text=_lines)
    if topic is None:
        text = program.get_help(whole)
    elif command := commands.get(topic):
        text = command.get_help(click.Context(command, whole, topic))
    else:
        near = suggest(topic, [*commands, "words"])
        raise UsageError(f"no help on '{topic}'{near} (there are: words, {', '.join(commands)})")
    return Answer(record=lambda: {"help": text}, text=lambda: text)


def _lines() -> list[str]:
    width = max(map(len, WORDS)) + 2
    lines = []
    for word, meaning in WORDS.items():
        first, *more = folded([meaning], _WIDTH - width)
        lines += [word.ljust(width) + first, *(" " * width + line.strip() for line in more)]
    return lines
