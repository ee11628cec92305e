"""What the whole suite shares: the desk, how much of it runs, and who runs what side by side."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import lanes
import lightenv
import offspring
import pretendgpu
from localruns import TEN, Desk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = ["secondtry"]

# What a person has set for hpcsweep, or Slurm for the job that runs the tests, is not theirs.
for _name in [name for name in os.environ if name.startswith(("HPCSWEEP_", "SLURM_", "SBATCH_"))]:
    is_of_the_tests = _name == "HPCSWEEP_GOLDEN"  # writes tests/golden anew
    if not is_of_the_tests and not (_name == "HPCSWEEP_CUDNN" and pretendgpu.is_pretended()):
        del os.environ[_name]
os.environ["HPCSWEEP_CLUSTER"] = "local"  # for commands that name no cluster
# Nor are the profiles and sweeps in a person's configuration folder.
os.environ["XDG_CONFIG_HOME"] = str(Path(tempfile.gettempdir()) / "hpcsweep-tests-config")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: test processes share the cores
# Hundreds of processes are started; none of them has to compile what another one has.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A machine that is busy with the rest of the suite says nothing about a law.
_PATIENT = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
settings.register_profile("ci", max_examples=30, derandomize=True, **_PATIENT)
settings.register_profile("night", max_examples=150, derandomize=False, **_PATIENT)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--all`."""
    parser.addoption("--all", action="store_true", help="run slow tests, and laws at length")


def pytest_configure(config: pytest.Config) -> None:
    """Choose with how many examples a law is tried."""
    settings.load_profile("night" if config.getoption("--all") else "ci")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is too long for every day, and put first what a worker should begin with."""
    if not config.getoption("--all"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
    mine = getattr(config, "workerinput", {}).get("share")
    items[:] = [item for item in items if not lanes.is_of_other_lane(item, mine)]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: lanes.rank(item.nodeid))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of a GPU where there is none, and those of its real numbers on a pretend one."""
    mark = item.get_closest_marker("gpu")
    if mark is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU that this torch supports")
    if mark.kwargs.get("real") and pretendgpu.is_pretended():
        pytest.skip("needs a real GPU")


@pytest.fixture(autouse=True, scope="module")
def _what_is_loaded_is_no_garbage() -> None:
    """Take what is there out of garbage collection: each point that is measured begins with one.

    With torch, pandas and all tests loaded a collection takes a quarter of a second, else nothing.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _signals_are_heard() -> None:
    offspring.hear_signals()


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """End what is left, such as a sweep that a failed test began: it must not meet the next one."""
    with offspring.all_end(request.node.nodeid):
        yield


_broken: list[str] = []  # what failed, and what ended a process of the tests


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what failed: pytest tells no failure where a process of its own ended otherwise."""
    if report.failed:
        _broken.append(f"{report.nodeid} {str(report.longrepr)[-500:]}")


def pytest_internalerror(excrepr: object) -> None:
    """Note why a process of the tests ended."""
    lines = str(excrepr).splitlines()
    _broken.append("\n".join([*(line for line in lines if "Error" in line), *lines[-8:]]))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let what is left be collected when the process ends; some libraries complain otherwise."""
    gc.unfreeze()
    session = config.pluginmanager.get_plugin("session")
    if getattr(session, "exitstatus", 0) == pytest.ExitCode.INTERNAL_ERROR:
        print("", "The first things that went wrong:", *_broken[:2], sep="\n", file=sys.stderr)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return a worker per core, one for when they wait, and one per lane."""
    return min(os.cpu_count() or 1, 6) + 1 + len(lanes.LANES) + lanes.has_gpu_lane()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Start the process of the GPU's lane on the pretend GPU."""
    if lanes.is_shared(config) and lanes.has_gpu_lane():
        specs[lanes.GPU_PROCESS].python = f"{pretendgpu.built().folder / 'run'} {sys.executable}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process which tests it collects."""
    node.workerinput["share"] = lanes.share(node.config, node.gateway.id)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no tests that other processes run."""
    return lanes.is_left_out(collection_path, config) or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep modules together, and Slurm's tests in their lanes."""
    import lanescheduler  # one process alone needs no pytest-xdist

    return lanescheduler.Scheduler(config, log)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a folder of its own, in which hpcsweep can be run."""
    return Desk(tmp_path)


@pytest.fixture
def nfs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give a function after which folders show what they held, as another host's NFS does.

    A host that makes or removes something in a folder is shown what is there.
    """

    def remember() -> None:
        real, names, files = os.listdir, dict[Path, list[str]](), os.open

        def listdir(path: Any) -> list[str]:
            return names.setdefault(Path(path).absolute(), real(path))

        def opened(path: Any, flags: int, *more: int, **words: Any) -> int:
            if flags & os.O_CREAT:
                names.pop(Path(path).absolute().parent, None)
            return files(path, flags, *more, **words)

        for folder, _, _ in os.walk(Path.cwd()):
            listdir(folder)
        monkeypatch.setattr(os, "listdir", listdir)
        monkeypatch.setattr(os, "open", opened)

    return remember


@pytest.fixture(scope="session")
def pretend_gpu() -> pretendgpu.PretendGpu:
    """Build the pretend GPU, on which other processes can run."""
    if why := pretendgpu.missing():
        pytest.skip(f"no pretend GPU: {why}")
    return pretendgpu.built()


@pytest.fixture(scope="module")
def said(pretend_gpu: pretendgpu.PretendGpu) -> Iterator[Callable[..., list[Any]]]:
    """Give a function that runs programs in one process with the pretend GPU (`servant`)."""
    with pretendgpu.servant(pretend_gpu) as run:
        yield run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    return lightenv.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def light(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> lightenv.Environment:
    """Install the wheel without any extra into an environment of its own."""
    return lightenv.light(tmp_path_factory.mktemp("light") / "env", wheel)


@pytest.fixture(scope="session")
def _measured_once(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("measured"))
    desk.spec(TEN)
    assert desk.submit().returncode == 0
    return desk


@pytest.fixture
def measured(desk: Desk, _measured_once: Desk) -> Desk:
    """Return a folder of its own with a sweep of ten points, all of them measured."""
    shutil.copytree(_measured_once.folder, desk.folder, dirs_exist_ok=True)
    return desk
