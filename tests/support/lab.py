"""A real Slurm on this machine for tests: three fake GPU nodes, loopback only, gone afterwards.

By hand, as root, with Debian's slurm-wlm, slurmdbd, munge and mariadb-server installed::

    python tests/support/lab.py start /tmp/lab [--no-accounting]
    export SLURM_CONF=/tmp/lab/slurm.conf
    sinfo; sbatch -p gpu -C gpul40s --gres=gpu:1 --wrap 'env | grep CUDA'
    python tests/support/lab.py stop /tmp/lab

Everything of a cluster lives in its directory: configuration, keys, sockets, state, logs, devices.
Every daemon carries ``HPCSWEEP_LAB=<directory>`` in its environment, which its children inherit;
that mark, not a stored pid, tells which processes to end. So a start that failed, a test run that
was killed (a guard process notices) and a second cluster beside this one are all the same case.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONFIGURATION = Path(__file__).parent / "slurm"
NODES = ("v100n1", "l40sn1", "mi250n1")
DAEMONS = ("slurmctld", "slurmdbd", *NODES)  # that listen on a port
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
# Below the ephemeral range: no outgoing connection takes a port between choice and use.
PORTS = range(12_000, 32_000)
PATIENCE_S = 180.0  # what takes two seconds on a quiet machine, beside a whole suite on two cores
JOB_IDS = 100_000  # of one life of slurmctld: more than tests submit
MARK = "HPCSWEEP_LAB"
# slurmctld refuses these where nothing stores the accounts.
ACCOUNTING = ("AccountingStorageEnforce=limits,qos", "AccountingStorageTRES=gres/gpu")


Seen = TypeVar("Seen")


class LabError(Exception):
    """The cluster did not come up, or a command on it failed."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a cluster may differ in; the defaults are Slurm's own, but for the waiting times."""

    name: str = "lab"
    accounting: bool = True
    max_array_size: int = 1001
    max_job_count: int = 10_000
    min_job_age: int = 300
    cred_expire: int = 5
    kill_wait: int = 10  # a supervisor that was told to stop ends its point meanwhile
    slurmd_timeout: int = 20
    gpus_per_node: int = 2
    lines: tuple[str, ...] = ()  # more slurm.conf, e.g. another partition


def why_not() -> str:
    """Return why no cluster can be started here, or nothing."""
    programs = ["slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db"]
    absent = [p for p in [*programs, "sbatch", "sacctmgr"] if not shutil.which(p, path=PATH)]
    if absent:
        return f"not installed: {', '.join(absent)} (slurm-wlm slurmdbd munge mariadb-server)"
    if os.geteuid() != 0:
        return "starting Slurm daemons and making device files needs root"
    with tempfile.TemporaryDirectory() as folder:
        try:
            _make_device(Path(folder) / "device")
        except OSError as error:
            return f"mknod is not permitted here: {error}"
    return ""


@dataclass
class Lab:
    """One running cluster."""

    directory: Path
    options: Options = field(default_factory=Options)
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _guard: subprocess.Popen[bytes] | None = None
    _claims: list[socket.socket] = field(default_factory=list)  # on its ports

    @property
    def environment(self) -> dict[str, str]:
        """Return what a client needs in its environment to talk to this cluster."""
        return {"SLURM_CONF": str(self.directory / "slurm.conf")}

    def start(self, *, guarded: bool = True) -> Lab:
        """Start every daemon and wait until all nodes are idle; on failure nothing stays behind."""
        self.directory.mkdir(parents=True)  # an existing directory is not ours to fill or remove
        (self.directory / MARK).touch()
        try:
            if guarded:
                self._guard = _start_guard(self.directory)
            ports = claim_ports(len(DAEMONS))
            self._claims = list(ports.values())
            _write_configuration(self.directory, self.options, list(ports))
            self.spawn("munged")
            if self.options.accounting:
                self._start_accounting()
            for name in ("slurmctld", *NODES):
                self.spawn(name)
            self.wait_for("idle nodes", self._states, enough=_are_idle)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process of this cluster, wait for each, and remove its directory."""
        if self._guard:
            self._guard.kill()
            self._guard.wait()
            if self._guard.stdin:
                self._guard.stdin.close()
        end_processes(self.directory)
        for daemon in self._daemons.values():
            daemon.wait()
        for claim in self._claims:
            claim.close()
        if (self.directory / MARK).exists():
            shutil.rmtree(self.directory)

    def spawn(self, name: str) -> None:
        """Start one daemon (also again, after `kill`) and wait until it can be talked to."""
        if name == "slurmctld" and name in self._daemons:
            _take_new_job_ids(self.directory / "job_ids.conf")
        command, extra = _command(self.directory, name)
        environment = {"PATH": PATH, **self.environment, MARK: str(self.directory), **extra}
        with (self.directory / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C is for the test run, which then stops us in order
            )
        ready = {
            "munged": (self.directory / "munge/socket").exists,
            "mariadbd": lambda: _accepts(self.directory / "mysql.sock"),
            "slurmdbd": lambda: self._answers("sacctmgr", "-n", "show", "cluster"),
            "slurmctld": lambda: self._answers("scontrol", "ping"),
        }
        if name in ready:
            self.wait_for(name, ready[name])

    def kill(self, name: str, *, steps: bool = True) -> None:
        """SIGKILL one daemon; for a node, by default its steps and their processes too.

        A node's power goes for all at once: no step may live to tell that its job was killed.
        """
        if name in NODES and steps:
            for pid in processes(self.directory, name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        self._daemons[name].kill()
        if name in NODES and steps:
            end_processes(self.directory, node=name)
        self._daemons[name].wait()

    def run(
        self, *command: str, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a client program on this cluster, in its directory."""
        done = subprocess.run(
            command,
            env={**os.environ, "PATH": PATH, **self.environment},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise LabError(f"{' '.join(command)}: [{done.returncode}] {done.stdout}{done.stderr}")
        return done

    def wait_for(
        self,
        what: str,
        look: Callable[[], Seen],
        *,
        seconds: float = PATIENCE_S,
        enough: Callable[[Seen], object] = bool,
    ) -> Seen:
        """Return what `look` sees as soon as that is `enough`.

        Most looks start a program, so the polling slows down.

        Raises:
            LabError: a daemon died, or it was not within `seconds`; says what was seen last.
        """
        deadline, pause = time.monotonic() + seconds, 0.02
        while not enough(seen := look()):
            dead = [n for n, d in self._daemons.items() if d.poll() not in (None, -signal.SIGKILL)]
            if dead or time.monotonic() > deadline:
                reason = f"{', '.join(dead)} ended" if dead else f"{seconds:g} s passed"
                told = f"no {what}: {reason}; last seen: {seen!r}"
                raise LabError(f"{told}\n{self.last_words()}")
            time.sleep(pause)
            pause = min(1.3 * pause, 0.25)
        return seen

    def clear(self) -> None:
        """Start what was killed, cancel every job, and wait until all nodes are idle again."""
        dead = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
        for name in dead:
            self.spawn(name)
        self.run("scancel", "--user=root")
        self.wait_for("empty queue", self._squeue, enough=lambda listed: listed == "")
        self.wait_for("end of what jobs left", self._end_jobs, enough=lambda pids: not pids)
        self.wait_for("idle nodes", self._resume, enough=_are_idle)

    def has_saved(self, words: str) -> bool:
        """Say whether slurmctld has written a job with these words to its disk."""
        with contextlib.suppress(FileNotFoundError):  # it is being replaced
            return words.encode() in (self.directory / "state/job_state").read_bytes()
        return False

    def last_words(self) -> str:
        """Return the end of every daemon's log."""
        logs = sorted((self.directory / "log").glob("*"))
        tails = {p.name: p.read_text(errors="replace").splitlines()[-8:] for p in logs}
        return "\n".join(f"{name}: {line}" for name, lines in tails.items() for line in lines)

    def _start_accounting(self) -> None:
        _install_database(self.directory)
        self.spawn("mariadbd")
        self.spawn("slurmdbd")
        for command in _accounting_setup(self.options.name):
            self.run("sacctmgr", "-i", *command.split())

    def _answers(self, *command: str) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.run(*command, check=False, timeout=10).returncode == 0
        return False

    def _squeue(self) -> str:
        """Return what squeue lists; a refusal or a late answer is no empty queue."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = self.run("squeue", "-h", check=False, timeout=10)
            return done.stdout.strip() if done.returncode == 0 else done.stderr
        return "no answer"

    def _resume(self) -> dict[str, str]:
        """Resume what is down or drained; a launch that failed drains its node only later."""
        states = self._states()
        for node in (n for n, state in states.items() if state not in {"idle", "completing"}):
            # Refused where the node comes back by itself.
            self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        return states

    def _states(self) -> dict[str, str]:
        done = self.run("sinfo", "-h", "-p", "all", "-N", "-o", "%N %T", check=False)
        return dict.fromkeys(NODES, "") | dict(line.split() for line in done.stdout.splitlines())

    def _end_jobs(self) -> set[int]:
        """End what Slurm lost: jobs that a killed slurmctld forgot, and orphans; return the rest.

        `linuxproc` kills a job's descendants; what is forked meanwhile has lost its parent.
        """
        jobs = {pid for pid in processes(self.directory) if _says(pid, "environ", b"SLURM_JOB_ID=")}
        for pid in jobs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return jobs | {p for p in processes(self.directory) if _says(p, "comm", b"slurmstepd")}


def _are_idle(states: dict[str, str]) -> bool:
    return set(states.values()) == {"idle"}


def _command(folder: Path, name: str) -> tuple[list[str], dict[str, str]]:
    """Return how one daemon is started in the foreground, and its extra environment."""
    if name == "munged":
        munge = folder / "munge"
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log"}
        files["seed-file"] = "seed"
        arguments = [f"--{option}={munge / file}" for option, file in files.items()]
        return ["munged", "--foreground", "--force", *arguments], {}
    if name == "mariadbd":
        database = ["--no-defaults", "--user=root", f"--datadir={folder / 'mysql'}"]
        database += [f"--socket={folder / 'mysql.sock'}", f"--pid-file={folder / 'run/mysql.pid'}"]
        # The data is thrown away with the directory, so nothing needs to reach the disk.
        speed = ["--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=16M"]
        command = ["mariadbd", *database, *speed, "--skip-networking", "--skip-grant-tables"]
        return command, {"TMPDIR": str(folder / "tmp")}
    if name == "slurmdbd":
        # slurmdbd insists that only its user reads its file, and finds it beside slurm.conf.
        return ["slurmdbd", "-D"], {"MYSQL_UNIX_PORT": str(folder / "mysql.sock")}
    if name == "slurmctld":
        return ["slurmctld", "-D"], {}
    return ["slurmd", "-D", "-N", name], {f"{MARK}_NODE": name}


def _write_configuration(folder: Path, options: Options, ports: list[int]) -> None:
    """Fill the directory: configuration files, munge key and device files."""
    for name in ("munge", "run", "log", "tmp", "state", "dev", *(f"spool/{n}" for n in NODES)):
        (folder / name).mkdir(parents=True)
    (folder / "munge/key").write_bytes(os.urandom(128))
    (folder / "munge/key").chmod(0o600)
    for node in NODES:
        for gpu in range(options.gpus_per_node):
            _make_device(folder / f"dev/{node}-gpu{gpu}")
    values: dict[str, object] = {f.name: getattr(options, f.name) for f in fields(options)}
    values |= {f"{name}_port": port for name, port in zip(DAEMONS, ports, strict=True)}
    values |= {
        "dir": folder,
        "last_gpu": options.gpus_per_node - 1,
        "host": socket.gethostname().split(".")[0],
        "storage": "slurmdbd" if options.accounting else "none",
        "lines": "\n".join([*(ACCOUNTING if options.accounting else []), *options.lines]),
    }
    for template in sorted(CONFIGURATION.glob("*.conf.in")):
        text = Template(template.read_text()).substitute(values)
        (folder / template.stem).write_text(text)
        (folder / template.stem).chmod(0o600)
    shutil.copy(CONFIGURATION / "cgroup.conf", folder)
    (folder / "job_ids.conf").write_text("FirstJobId=1\n")


def _take_new_job_ids(file: Path) -> None:
    """Give every life of slurmctld ids of its own.

    One that is killed forgets its last jobs and gives their ids away again. slurmd remembers such
    a job until it is told to end it: "already running, do not launch second copy"; the new job is
    then held and the node drained.
    """
    first = int(file.read_text().partition("=")[2]) + JOB_IDS
    file.write_text(f"FirstJobId={first}\n")


def _make_device(path: Path) -> None:
    """Make a character device that behaves like /dev/null."""
    os.mknod(path, 0o20666, os.makedev(1, 3))


def _install_database(folder: Path) -> None:
    done = subprocess.run(
        [
            *("mariadb-install-db", "--no-defaults", f"--datadir={folder / 'mysql'}"),
            *("--user=root", "--skip-test-db", "--auth-root-authentication-method=normal"),
        ],
        # Its own TMPDIR: a MariaDB that starts removes the temporary tables of every other there.
        env={"PATH": PATH, MARK: str(folder), "TMPDIR": str(folder / "tmp")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LabError(f"mariadb-install-db: {done.stdout}{done.stderr}")


def _accounting_setup(name: str) -> Iterator[str]:
    """Yield the sacctmgr commands for accounts and QOS; some of them with tight limits."""
    yield f"add cluster {name}"
    yield "add qos few MaxSubmitJobsPerUser=5 Flags=DenyOnLimit"
    yield "add qos brief MaxWall=00:10:00 Flags=DenyOnLimit"
    yield "add qos calm MaxWall=00:20:00"  # whose jobs sbatch takes, and nothing ever starts
    yield f"add account lab,small Cluster={name}"
    qos = "QOS=normal,few,brief,calm DefaultQOS=normal"
    yield f"add user root Cluster={name} Account=lab,small DefaultAccount=lab {qos}"
    yield f"modify user root where Cluster={name} Account=small set MaxSubmitJobs=4"


def claim_ports(count: int) -> dict[int, socket.socket]:
    """Return ports that nobody listens on now, on any address, since slurmctld binds them all.

    Each comes with a claim: until that is closed no other lab of this machine gets the port, though
    a daemon listens on it only some seconds later. Tests seed `random`, so two labs would draw the
    same ports from it.

    Raises:
        LabError: there are not so many.
    """
    found: dict[int, socket.socket] = {}
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            # the name of no file, but one in Linux' own list, from which it goes with its process
            claim.bind(f"\0hpcsweep-lab-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            claim.close()
        else:
            found[port] = claim
        if len(found) == count:
            return found
    for claim in found.values():
        claim.close()
    raise LabError("no free port on loopback")


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.connect(str(path))
        return True
    return False


def processes(folder: Path, node: str | None = None) -> set[int]:
    """Return the pids that belong to the cluster in this directory (or to one of its nodes).

    Daemons and their steps carry the mark. A job's processes have the submitter's environment, to
    which slurmd adds the node's name; whatever hides its environment is found by its parent.
    """
    marks = {f"{MARK}_NODE={node}"} if node else set()
    jobs = {f"SLURMD_NODENAME={n}" for n in ([node] if node else NODES)}
    parents: dict[int, int] = {}
    ours: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if stat[0] == "Z":
                continue
            parents[int(entry.name)] = int(stat[1])
            environment = set((entry / "environ").read_text(errors="replace").split("\0"))
            daemon = {f"{MARK}={folder}", *marks} <= environment
            job = f"SLURM_CONF={folder / 'slurm.conf'}" in environment and jobs & environment
            if daemon or job:
                ours.add(int(entry.name))
    while more := {p for p, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return ours


def _says(pid: int, file: str, word: bytes) -> bool:
    """Say whether a file of a process in /proc has a word; no for a process that is gone."""
    with contextlib.suppress(OSError):
        return word in Path(f"/proc/{pid}/{file}").read_bytes()
    return False


def end_processes(folder: Path, node: str | None = None) -> None:
    """SIGKILL everything of a cluster until nothing is left; its data is not worth a goodbye."""
    deadline = time.monotonic() + PATIENCE_S
    while pids := processes(folder, node):
        if time.monotonic() > deadline:
            raise LabError(f"SIGKILL does not end {sorted(pids)}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _start_guard(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that stops the cluster should this one die without doing so."""
    return subprocess.Popen(
        [sys.executable, __file__, "guard", str(folder)],
        env={"PATH": PATH},
        stdin=subprocess.PIPE,  # closes when this process ends, however it ends
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    """Start, stop or guard (until standard input ends) a cluster from the command line."""
    parser = argparse.ArgumentParser(description="A real Slurm on this machine, for trying out")
    parser.add_argument("command", choices=("start", "stop", "guard"))
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("--no-accounting", dest="accounting", action="store_false")
    asked = parser.parse_args()
    folder = asked.directory.resolve()
    if asked.command == "start":
        if reason := why_not():
            sys.exit(reason)
        lab = Lab(folder, Options(accounting=asked.accounting)).start(guarded=False)
        print(f"export SLURM_CONF={lab.environment['SLURM_CONF']}")
        return
    if asked.command == "guard":
        sys.stdin.read()
    Lab(folder).stop()


if __name__ == "__main__":
    main()
