"""Reads options of sbatch: entries of a profile, and the variables of whoever submits.

sbatch takes short forms, several options in one line, and every beginning of a long name that no
other option has.

Its variables (`SBATCH_ACCOUNT`) would stand over a job script. Here they are defaults: what a
profile says goes first, so that a script holds all that its jobs are sent with.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hpcsweep import numerals

# Of sbatch(1), to know the rest of a shortened one.
_LONG: Final = """
account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment
constraint container container-id context contiguous core-spec cores-per-socket cpu-freq
cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude exclusive
export export-file extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input job-name
kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu
mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output overcommit oversubscribe parsable
partition power prefer priority profile propagate qos quiet reboot requeue reservation signal
sockets-per-node spread-job switches tasks-per-node test-only thread-spec threads-per-core time
time-min tmp tres-bind tres-per-task uid usage use-min-nodes verbose version wait wait-all-nodes
wckey wrap
""".split()  # noqa: SIM905 - so many quotes would hide the words
_SHORT: Final = {
    "A": "account", "a": "array", "b": "begin", "D": "chdir", "M": "clusters", "C": "constraint",
    "S": "core-spec", "c": "cpus-per-task", "d": "dependency", "m": "distribution", "e": "error",
    "x": "exclude", "B": "extra-node-info", "G": "gpus", "h": "help", "H": "hold", "i": "input",
    "J": "job-name", "L": "licenses", "k": "no-kill", "F": "nodefile", "w": "nodelist",
    "N": "nodes", "n": "ntasks", "o": "output", "O": "overcommit", "s": "oversubscribe",
    "p": "partition", "q": "qos", "Q": "quiet", "t": "time", "v": "verbose", "V": "version",
    "W": "wait",
}  # fmt: skip
_FLAGS: Final = frozenset(
    "hHkOQsvVW"
)  # short options without a value: others may follow in the same word

_OWN_CLUSTER: Final = "cannot name a cluster; the variable SLURM_CLUSTERS does"
_PRINTS: Final = "changes what sbatch prints, where hpcsweep reads the job's number"
_NO_JOB: Final = "sends no job"
_BY_PROFILE: Final = "write its option into the `sbatch_options` of a profile"
# What hpcsweep relies on, so that nobody may set it, and why.
RESERVED: Final = {
    "cluster": _OWN_CLUSTER,
    "clusters": _OWN_CLUSTER,
    "array": "cannot set the array, which numbers the chunks; `array_throttle` limits its tasks",
    "chdir": "cannot set the working folder, by which hpcsweep knows its jobs in the queue",
    "wait": "cannot wait for the jobs; `hpcsweep status --watch` does",
    "quiet": _PRINTS,
    "parsable": _PRINTS,
    **dict.fromkeys(("help", "usage", "version", "test-only", "wrap"), _NO_JOB),
}

# Options of which sbatch takes one, or that together ask for something else than each alone.
_ALTERNATIVES: Final = (
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"gres", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-per-task"},
    {"cpus-per-task", "cpus-per-gpu"},
    {"core-spec", "thread-spec"},
    {"exclusive", "oversubscribe"},
    {"requeue", "no-requeue"},
)
_OPPOSITES: Final = {"requeue": "no-requeue", "no-requeue": "requeue"}
_PREFIX: Final = "SBATCH_"
# Variables that are not named as their options are.
_OTHER_NAMES: Final = {
    "ARRAY_INX": "array", "BURST_BUFFER": "bb", "CPU_FREQ_REQ": "cpu-freq",
    "MEM_PER_NODE": "mem", "TIMELIMIT": "time",
}  # fmt: skip
# Those that count. The others that sbatch has are about one call of it by hand, such as names of
# logs, or hpcsweep relies on their options; and there is none for the rest of the options.
_COUNT: Final = frozenset({
    "ACCOUNT", "ACCTG_FREQ", "BATCH", "BURST_BUFFER", "CLUSTER_CONSTRAINT", "CONSTRAINT",
    "CONTAINER", "CONTAINER_ID", "CORE_SPEC", "CPUS_PER_GPU", "CPU_FREQ_REQ", "DELAY_BOOT",
    "DISTRIBUTION", "EXCLUSIVE", "EXPORT", "GET_USER_ENV", "GPUS", "GPUS_PER_NODE",
    "GPUS_PER_SOCKET", "GPUS_PER_TASK", "GPU_BIND", "GPU_FREQ", "GRES", "GRES_FLAGS", "HINT",
    "MEM_BIND", "MEM_PER_CPU", "MEM_PER_GPU", "MEM_PER_NODE", "NETWORK", "NO_KILL", "NO_REQUEUE",
    "OVERCOMMIT", "PARTITION", "POWER", "PROFILE", "QOS", "REQUEUE", "RESERVATION", "SPREAD_JOB",
    "THREADS_PER_CORE", "THREAD_SPEC", "TIMELIMIT", "TRES_BIND", "TRES_PER_TASK", "USE_MIN_NODES",
    "WAIT_ALL_NODES", "WCKEY",
})  # fmt: skip
_WITHOUT_VALUE: Final = frozenset({
    "no-requeue", "overcommit", "requeue", "spread-job", "use-min-nodes",
})  # fmt: skip
_PERHAPS_A_VALUE: Final = frozenset({"exclusive", "get-user-env", "no-kill"})
# The values by which sbatch sets an option without a value, and those that leave out the others.
_YES: Final = re.compile("|yes|0*[1-9][0-9]*")
_NO: Final = re.compile("no|0+")


def read(entry: str) -> list[tuple[str, str]]:
    """Return name and value of each option: ``time``, ``60`` of ``--time=60``, ``-t 60``, ``-t60``.

    A value is empty where there is none. `ValueError` for a quote that nothing closes.
    """
    found: list[tuple[str, str]] = []
    for word in shlex.split(entry):
        if word.startswith("--"):
            name, _, value = word.removeprefix("--").partition("=")
            found.append((_full(name), value))
        elif word.startswith("-"):
            found += _short(word.removeprefix("-"))
        elif found:
            name, value = found[-1]
            found[-1] = (name, value or word)
    return found


def _short(letters: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a word such as ``-Hpgpu``: flags, and one with its value."""
    while letters[:1] in _FLAGS and letters[1:]:
        yield _SHORT[letters[0]], ""
        letters = letters[1:]
    letter = letters[:1]
    yield _SHORT.get(letter, letter), letters[1:]


def _full(name: str) -> str:
    """Return the name of which this is the beginning, unless several begin so."""
    if name in _LONG:
        return name
    longer = [long for long in _LONG if long.startswith(name)]
    return longer[0] if len(longer) == 1 else name


def named(entries: Iterable[str]) -> dict[str, str]:
    """Return the options of several entries with their values: the last one counts."""
    found: dict[str, str] = {}
    for entry in entries:
        for name, value in read(entry):
            found.pop(_OPPOSITES.get(name, ""), None)
            found[name] = value
    return found


def written(name: str, value: str) -> str:
    """Return the entry of one option, whose value may be empty."""
    return shlex.quote(f"--{name}={value}" if value else f"--{name}")


def alternatives(name: str) -> set[str]:
    """Return an option and those that ask for the same in other ways."""
    names = {name}
    for group in _ALTERNATIVES:
        if name in group:
            names |= group
    return names


def without(entries: Iterable[str], names: Collection[str]) -> list[str]:
    """Return entries without some options, each other one as it was written if it stood alone."""
    kept = []
    for entry in entries:
        options = read(entry)
        others = [option for option in options if option[0] not in names]
        if len(others) == len(options):
            kept.append(entry)
        else:
            kept += [written(*option) for option in others]
    return kept


def checked(entry: str) -> str:
    """Return an entry of a profile; `ValueError` where it is none, or sets what it may not."""
    if not entry.startswith("-") or not shlex.split(entry):  # which refuses an open quote
        raise ValueError("needs an option of sbatch, such as --exclusive")
    for name, value in read(entry):
        if name in RESERVED:
            raise ValueError(f"--{name} {RESERVED[name]}")
        if name == "time":
            numerals.slurm_seconds(value)
    return entry


@dataclass(frozen=True)
class Variable:
    """A variable of sbatch, and its option; `why_not` says why it is not taken, if so."""

    name: str
    option: str
    value: str
    why_not: str = ""

    @property
    def source(self) -> str:
        """Where its option comes from, as messages say it."""
        return f"environment: {self.name}"

    @property
    def refusal(self) -> str:
        """What to tell of one that is not taken."""
        return f"{self.name} is not taken: {self.why_not}"

    @property
    def entry(self) -> str:
        """Its option as an entry of a profile."""
        return written(self.option, self.value)


def variables(environment: Mapping[str, str]) -> list[Variable]:
    """Return the variables of sbatch that are set, by name; inside a job they may be that job's."""
    found = []
    for name in sorted(environment):
        word = name.removeprefix(_PREFIX)
        option = _OTHER_NAMES.get(word, word.lower().replace("_", "-"))
        value = _value(option, environment[name])
        if word == name or value is None:
            continue
        why_not = ""
        if word not in _COUNT:
            why_not = RESERVED.get(option, _BY_PROFILE)
        if not {"\n", "\r"}.isdisjoint(value):
            why_not = "a job script cannot hold its line end"
        if "SLURM_JOB_ID" in environment:
            why_not = "inside a job it may be that job's"
        found.append(Variable(name, option, value, why_not))
    return found


def _value(option: str, text: str) -> str | None:
    """Return the value that a variable gives an option, empty for none; None if it sets nothing."""
    if option not in _WITHOUT_VALUE | _PERHAPS_A_VALUE:
        return text or None
    if _YES.fullmatch(text):
        return ""
    return None if option in _WITHOUT_VALUE or _NO.fullmatch(text) else text


def taken(environment: Mapping[str, str], set_already: Collection[str]) -> list[Variable]:
    """Return the variables that add to a profile whose options of sbatch are these."""
    return [
        variable
        for variable in variables(environment)
        if not variable.why_not and alternatives(variable.option).isdisjoint(set_already)
    ]
