"""The program with all its commands, its help, and how it ends.

Each command imports what it needs when it runs, so that `--help` is instant.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from hpcsweep import environment, extras, files, messages, processes
from hpcsweep.cli import (
    answer,
    decisions,
    end_at_interrupt,
    init,
    pictures,
    planning,
    settings,
    sweeps,
    tables,
)
from hpcsweep.cli.answer import Answer
from hpcsweep.cli.settings import Names, flag, option
from hpcsweep.errors import EXIT_INTERRUPTED, HpcsweepError, UsageError, suggest
from hpcsweep.spec import lookup
from hpcsweep.text import folded
from hpcsweep.version import __version__

_WIDTH: Final = 79  # of the narrowest terminal, with room for the cursor
# in the order in which a sweep meets them; docs/words.md is generated from them
WORDS: Final = {
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
_SECONDS: Final = click.IntRange(1, 3600)  # nobody waits for more than an hour
_SECONDS.name = "whole number"  # as click's complaints name it
_AGAIN_SECONDS: Final = 0.01  # by then a callback is over; nobody notices it


def run() -> NoReturn:
    """Run the command line and exit with the code that belongs to its outcome."""
    processes.raise_gc_threshold()
    by_variable = os.environ.get(environment.DEBUG, "").lower()  # click refuses other words
    debug = "--debug" in sys.argv or by_variable in {"1", "true", "t", "yes", "y", "on"}
    # before any file is opened: it would take the number of a closed stream
    answer.reopen_closed()
    before = sys.unraisablehook
    sys.unraisablehook = _interrupt_again
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with files.errors_named():
            # not standalone: click would print errors in its own words, and end with its own codes
            sys.exit(main(prog_name="hpcsweep", standalone_mode=False) or 0)
    except HpcsweepError as error:
        _fail(str(error), error, debug=debug)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", KeyboardInterrupt("interrupted"), EXIT_INTERRUPTED, debug=debug)
    except click.ClickException as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2
            answer.show(error.format_message())
            sys.exit(0)
        # who typed --debug behind the command wants to be told that, and no traceback
        misplaced = getattr(error, "option_name", "") == "--debug"
        _fail(_usage(error), error, debug=debug and not misplaced)
    except Exception as error:  # noqa: BLE001 - people get a line, --debug the traceback
        text = f"unexpected {type(error).__name__}: {error}"
        _fail(f"{text} (`hpcsweep --debug ...` shows where; please report it)", error, debug=debug)
    finally:
        end_at_interrupt()
        sys.unraisablehook = before


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that came within a callback, as imports have: Python forgets it."""
    if unraisable.exc_type is KeyboardInterrupt:
        timer = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(unraisable)


def _usage(error: click.ClickException) -> str:
    """Return click's complaint, and the command that shows the right usage."""
    ctx = getattr(error, "ctx", None)
    option = getattr(error, "option_name", "")
    if ctx is not None and ctx.parent and option in _options_of(main):
        return f"{option} belongs before the command: hpcsweep {option} ... {ctx.info_name} ..."
    if ctx is not None and isinstance(error, click.NoSuchOption):
        hint = _of_others(option, ctx.command)
        if hint:
            return f"no option {option}: {hint}"
    text = f"{error.format_message().rstrip('.')}{settings.blamed(error)}"
    param = error.param if isinstance(error, click.MissingParameter) else None
    if ctx is not None and param and param.name in _KNOWN:
        names = ", ".join(_names(ctx, _KNOWN[param.name]))
        text += f"; there are: {names or 'none yet'}"
    command = ctx.command_path if ctx else "hpcsweep"
    return f"{text} (see `{command} --help`)"


def _of_others(option: str, command: click.Command) -> str:
    """Say what an option is that a command lacks; empty where it may be one that is misspelt."""
    from hpcsweep import catalog

    # the commonest guess: that each axis is an option of `submit`
    axis = option.lstrip("-").replace("-", "_")
    if axis in catalog.AXES:
        filters = "--where" in _options_of(command)
        written = f"--where {axis}=VALUE" if filters else "the sweep file has its values"
        return f"{axis} is an axis; {written}"
    # scripts that draw rooflines have one option for the picture and another for its numbers
    if option == "--summary" and "--out" in _options_of(command):
        return "a second `--out FILE.csv` writes the numbers"
    for name, other in main.commands.items():
        if option in _options_of(other):
            return f"it belongs to `hpcsweep {name}`"
    if suggest(option, _options_of(command)):
        return ""
    if command is settings.config:
        return "to set one, write a line into hpcsweep.toml, such as top = 5"
    return ""


def _options_of(command: click.Command) -> list[str]:
    options: list[str] = []
    for param in command.params:
        options += param.opts
    return options


def _fail(text: str, error: BaseException, code: int = 1, *, debug: bool) -> NoReturn:
    if debug:
        raise  # noqa: PLE0704 - called from except clauses only
    end_at_interrupt()
    code = getattr(error, "exit_code", code)
    with answer.forgiving():
        answer.show(f"hpcsweep: {text}", file=sys.stderr, flush=True)
        if (answer.mode.json or "--json" in sys.argv) and not answer.mode.done:
            answer.document({}, error, text, code)
    sys.exit(code)


class _Program(click.Group):
    """The group of all commands, whose defaults files may set; suggests the nearest name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; `UsageError` suggests the nearest name for an unknown one."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            # click suggests no name
            near = suggest(args[0], known)
            raise UsageError(f"no command '{args[0]}'{near} (there are: {', '.join(known)})")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # what the command returns
        """Run the command; `MissingDependency` names the extra of a package that is missing."""
        try:
            return super().invoke(ctx)
        except click.BadOptionUsage as error:  # click does not say whose option lacks its value
            name = ctx.invoked_subcommand
            if error.ctx is None and name:
                error.ctx = click.Context(self.commands[name], ctx, name)
            raise
        except ModuleNotFoundError as error:
            lack = extras.missing(error, f"{ctx.command_path} {ctx.invoked_subcommand}")
            if lack is None:
                raise
            raise lack from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # tests, and completion, call the program several times in a process
        answer.reset()
        ctx.with_resource(messages.told_to(answer.tell))
        try:
            # before the arguments are parsed: files set the defaults of options
            settings.load(ctx)
            return super().parse_args(ctx, args)
        except BaseException:
            ctx.close()  # click closes no context whose arguments are refused
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands by what they are for."""
        width = max(map(len, self.commands))
        for purpose, commands in _PURPOSES.items():
            with formatter.section(purpose):
                room = formatter.width - width - 6  # click's indent, and its gap between columns
                rows = []
                for command in commands:
                    name = str(command.name).ljust(width)
                    rows.append((name, command.get_short_help_str(room)))
                formatter.write_dl(rows)


@click.group(
    cls=_Program,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": settings.PREFIX},
)
@click.version_option(__version__, prog_name="hpcsweep")
@flag("--debug", "Show tracebacks.")
@option(
    "--results",
    "Folder for the results of sweeps; the default is beside hpcsweep.toml, if there is one.",
    type=click.Path(file_okay=False, path_type=Path),
    default=lookup.results_folder,
    show_default="results",
)
@option(
    "--slurm-timeout S",
    "Seconds that Slurm may take to answer a question, such as squeue's or sacct's.",
    type=_SECONDS,
    show_default="10",
)
@flag("-q --quiet", "Print answers and errors only: no progress.")
@click.pass_context
def main(
    ctx: click.Context,
    results: Path,
    slurm_timeout: int | None,
    *,
    debug: bool,  # noqa: ARG001 - see run
    quiet: bool,
) -> None:
    """Measure convolutional networks: from one YAML file to one checked table.

    \b
    Try:  hpcsweep submit quickstart --cluster local
          hpcsweep collect quickstart
          hpcsweep report quickstart
    """
    answer.mode.quiet = quiet
    wrong = ctx.meta.get(settings.WRONG)
    if wrong:
        raise wrong
    if slurm_timeout:
        from hpcsweep.cluster.slurm import call

        ctx.with_resource(call.waiting(slurm_timeout))
    ctx.obj = results


@click.command("help")
@click.argument("topic", required=False)
@click.pass_context
def help_(ctx: click.Context, topic: str | None) -> Answer:
    """Explain a command, or the words of hpcsweep.

    \b
    hpcsweep help words
    hpcsweep help submit
    """
    if topic == "words":
        return Answer(record=lambda: {"words": WORDS}, text=_lines_of_words)
    program = ctx.find_root()
    if topic is None:
        text = main.get_help(program)
    elif topic in main.commands:
        command = main.commands[topic]
        text = command.get_help(click.Context(command, program, topic))
    else:
        names = ", ".join(main.commands)
        near = suggest(topic, [*main.commands, "words"])
        raise UsageError(f"no help on '{topic}'{near} (there are: words, {names})")
    return Answer(record=lambda: {"help": text}, text=lambda: text)


def _lines_of_words() -> list[str]:
    width = max(map(len, WORDS)) + 2
    lines = []
    for word, meaning in WORDS.items():
        start = word.ljust(width)
        for line in folded([meaning], _WIDTH - width):
            lines.append(start + line.strip())
            start = " " * width
    return lines


_PURPOSES: Final = {  # in the order of use
    "Set up": (init.init, settings.config, planning.discover, init.doctor, planning.verify),
    "Run": (
        planning.expand,
        planning.estimate,
        sweeps.submit,
        sweeps.status,
        sweeps.points,
        sweeps.logs,
        sweeps.retry,
        sweeps.cancel,
        sweeps.rm,
    ),
    "Read": (
        tables.collect,
        tables.import_,
        tables.bundle,
        tables.report,
        decisions.layers,
        pictures.plot,
        pictures.roofline,
    ),
    "Decide": (decisions.best, decisions.compare, decisions.predict),
    "Look up": (help_,),
}


class _Name(Names):
    """Text that is completed to a name that is known when TAB is pressed, else to a file's."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        kind = _KNOWN[param.name]
        names = [name for name in _names(ctx, kind) if name.startswith(incomplete)]
        # a sweep file or a profile may lie anywhere
        if kind and not names:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in names]


def _names(ctx: click.Context, kind: str) -> list[str]:
    """Return the names of sweep files or profiles; without a kind, of sweeps with results."""
    from hpcsweep.store import folders

    with suppress(HpcsweepError, OSError):
        if kind:
            return [*lookup.names(kind)]
        return [run.name for run in folders.all_sweeps(ctx.find_root().params["results"])]
    return []


# by parameter, the kind of file that it names; of a sweep with results none
_KNOWN: dict[str | None, str] = {
    "spec": lookup.SWEEPS,
    "cluster": lookup.PROFILES,
    **dict.fromkeys(("sweep", "sweeps", "first", "others"), ""),
}


for _command in chain.from_iterable(_PURPOSES.values()):
    main.add_command(_command)
answer.everywhere(main)
for _param in chain.from_iterable(_command.params for _command in main.commands.values()):
    if _param.name in _KNOWN and type(_param.type) in {Names, type(click.STRING)}:
        _param.type = _Name()
