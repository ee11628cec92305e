"""Turns arguments into calls, results into text, and errors into exit codes.

Ctrl-C ends the command in a line, but while it is imported, and when its work is done, without one.
"""

import os  # and no other import, not even of `__future__`, in which Ctrl-C would make a traceback

TYPE_CHECKING = False  # as in `typing`, whose import alone takes 10 ms
if TYPE_CHECKING:
    from typing import NoReturn

    from hpcsweep.cli.program import main

__all__ = ["end_at_interrupt", "main", "run"]
_INTERRUPTED = 130  # `errors.EXIT_INTERRUPTED`, before anything is imported


def run() -> "NoReturn":
    """Run the command line and exit with the code that belongs to its outcome."""
    try:
        end_at_interrupt()
        from hpcsweep.cli import program
    except KeyboardInterrupt:  # in the first line
        os._exit(_INTERRUPTED)
    program.run()


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once and silently: there is nothing to put in order.

    As a traceback does not do, which an interrupt makes of an import.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))


def __getattr__(name: str) -> object:
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpcsweep.cli.program import main

    return main
