"""Records what a terminal of 80 columns shows, for docs/tutorial.md.

::

    python docs/screens.py

tmux is the terminal. A small sweep is measured on this machine, in a new folder, by the hpcsweep of
this environment; each screen is what tmux has on its screen at that moment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).parent / "tutorial.md"
BLOCK = re.compile(r"(<!-- (\w+): recorded -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH, HEIGHT = 80, 60
SWEEP = """\
workload: inference
axes:
  model: [squeezenet1_1]
  input_size: [64, 96]
  algorithm: [auto, gemm, implicit_gemm, implicit_precomp_gemm, winograd]
measure: {warmup: 2, iterations: 5}
"""
SUBMIT = "hpcsweep submit small.yaml --cluster local"
WATCH = "hpcsweep status small --watch"
LATER = {
    "layers": "hpcsweep layers small --where input_size=96 --top 8 --unreliable",
}
SECONDS = 600.0


class Terminal:
    """A shell in a tmux of its own."""

    def __init__(self, name: str, folder: str) -> None:
        self._tmux = ("tmux", "-L", f"hpcsweep-{os.getpid()}-{name}", "-f", os.devnull)
        bin_ = Path(sys.executable).parent
        env = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"}
        size = ("-x", str(WIDTH), "-y", str(HEIGHT))
        self._run("new-session", "-d", *size, "-c", folder, "bash --norc --noprofile", env=env)
        self.type("PS1='$ '")

    def type(self, command: str) -> None:
        """Clear the screen and type a command."""
        self._run("send-keys", f"clear; {command}", "Enter")
        time.sleep(0.5)

    def screen(self) -> str:
        """Return the text on the screen."""
        return self._run("capture-pane", "-p").rstrip("\n ")

    def wait(self, words: str) -> str:
        """Return the screen as soon as it has these words; a pattern."""
        until = time.monotonic() + SECONDS
        while not re.search(words, shown := self.screen(), re.MULTILINE):
            if time.monotonic() > until:
                raise TimeoutError(shown)
            time.sleep(0.3)
        return shown

    def finished(self) -> str:
        """Return the screen when the prompt is there again, without it."""
        return self.wait(r"^\$ ?\Z").removesuffix("$").rstrip()

    def close(self) -> None:
        """End the shell and its tmux."""
        self._run("kill-server")

    def _run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        command = [*self._tmux, *arguments]
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def record(folder: str) -> dict[str, tuple[str, str]]:
    """Return the commands and the screens by name."""
    (Path(folder) / "small.yaml").write_text(SWEEP, encoding="utf-8")
    work, other = Terminal("work", folder), Terminal("other", folder)
    try:
        work.type(SUBMIT)
        running = work.wait(r"[3-9]/10 points")
        other.type(WATCH)
        watched = other.wait(r"\d of 10 points done")
        found = {
            "running": (SUBMIT, running),
            "watch": (WATCH, watched),
        }
        work.finished()
        work.type("hpcsweep collect small")
        work.finished()
        for name, command in LATER.items():
            work.type(command)
            found[name] = (command, work.finished())
    finally:
        work.close()
        other.close()
    return found


def main() -> None:
    """Put new screens into the page."""
    with tempfile.TemporaryDirectory(prefix="hpcsweep-screens-") as folder:
        found = record(folder)

    def block(old: re.Match[str]) -> str:
        command, screen = found[old[2]]
        return f"{old[1]}```console\n$ {command}\n{screen}\n```\n{old[3]}"

    PAGE.write_text(BLOCK.sub(block, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
