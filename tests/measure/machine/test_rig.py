"""The device, its memory, and what describes them."""

from __future__ import annotations

import json
import socket
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from hpcsweep.measure.machine import rig
from hpcsweep.measure.machine.rig import MemoryWatch, Rig

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_the_environment_is_plain_json_and_says_what_matters():
    """Host, processor, memory, torch with its build, Python: all that explains a number later."""
    environment = json.loads(json.dumps(Rig().environment()))
    assert environment["software"]["torch"] == torch.__version__
    assert environment["software"]["torchvision"]
    assert environment["host"]["name"] == socket.gethostname()
    assert environment["host"]["cpu_model"]
    assert environment["host"]["memory_limit_bytes"] > 1 << 28
    assert environment["device"]["type"] == "cpu"


def test_the_cells_of_a_row_are_of_this_machine():
    """What does not apply to a processor is empty."""
    cells = rig.row_cells(rig.current_device("cpu"), {})
    assert cells.device_name == rig.cpu_model()
    assert cells.cuda_version is cells.driver_version is None


def test_the_schedulers_words_are_kept(monkeypatch):
    """Slurm's variables and what decides on threads and devices are written down."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu03")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environment = Rig().environment()
    assert environment["slurm"]["SLURM_JOB_ID"] == "17"
    assert environment["environment"]["OMP_NUM_THREADS"] == "1"
    assert environment["row"]["node"] == "gpu03"
    assert "PATH" not in environment["environment"]


@pytest.mark.parametrize(
    ("name", "uuid", "told"),
    [
        ("NVIDIA H200", "12-34", "GPU-12-34"),
        ("NVIDIA H200 MIG 1g.18gb", "12-34", "MIG-12-34"),
        ("Tesla V100-SXM2-32GB", None, None),
    ],
)
def test_a_gpu_has_the_uuid_that_its_driver_knows(monkeypatch, name, uuid, told):
    """Torch tells the number alone, of a slice the slice's; before 2.5 it tells none."""
    known = {"uuid": uuid} if uuid else {}
    properties = SimpleNamespace(multi_processor_count=132, **known)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: name)
    assert rig.current_device("cuda").uuid == told


@pytest.mark.parametrize(("visible", "number"), [(None, 1), ("5,3", 3), ("5", 1)])
def test_a_gpu_has_the_number_that_its_driver_knows(monkeypatch, visible, number):
    """Torch's second GPU is the driver's fourth, if that is what may be seen."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert rig.driver_index(1) == number


def test_the_bus_of_a_gpu_is_written_as_its_driver_does(monkeypatch):
    """Without the function, which torch does not tell; an older torch tells none of it."""
    told = SimpleNamespace(
        multi_processor_count=132, pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=2
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: told)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "A")
    assert rig.current_device("cuda").bus == "0000:c1:02."
    del told.pci_bus_id
    assert rig.current_device("cuda").bus == ""


def _resettable():
    watch = MemoryWatch()
    watch.reset()
    return watch.source == "vm_hwm"


@linux
def test_the_peak_covers_what_was_used_and_given_back():
    """200 MB that are gone by the time of asking are in the peak."""
    watch = MemoryWatch()
    watch.reset()
    before = watch.peak()
    torch.ones(50_000_000)
    assert watch.peak() - before > (150 << 20 if watch.source == "vm_hwm" else -1)


@linux
def test_a_new_point_forgets_the_peak_of_the_last():
    """Where the kernel's mark can be reset, a large point does not mark the small ones after it."""
    if not _resettable():
        pytest.skip("this kernel does not let us reset the high-water mark")
    watch = MemoryWatch()
    watch.reset()
    torch.ones(50_000_000)
    large = watch.peak()
    watch.reset()
    assert watch.peak() < large - (100 << 20)


def test_where_the_mark_cannot_be_reset_the_process_peak_is_named(monkeypatch):
    """The source says that it is the whole process's maximum."""

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(rig.Path, "write_text", refuse)
    watch = MemoryWatch()
    watch.reset()
    assert watch.source == "max_rss"
    assert watch.peak() > 10 << 20


@linux
def test_the_limit_is_what_this_process_may_use():
    """At most the machine's memory, at least what is in use."""
    watch = MemoryWatch()
    assert watch.peak() < watch.limit() <= psutil.virtual_memory().total


@linux
def test_the_limit_of_a_control_group_counts(tmp_path, monkeypatch):
    """A job's memory limit is below the machine's; "max" and version 1's huge number are none."""
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "huge").write_text("9223372036854771712\n")
    (tmp_path / "real").write_text("1073741824\n")
    numbers = [rig.limit_in(tmp_path / name) for name in ("max", "huge", "real", "absent")]
    assert numbers == [None, None, 1 << 30, None]
    monkeypatch.setattr(rig, "control_group_limit", lambda: 1 << 30)
    assert MemoryWatch().limit() == 1 << 30


def test_the_columns_name_their_source():
    """Peak, limit and where they come from go together."""
    watch = MemoryWatch()
    watch.reset()
    cells = watch.cells()
    assert cells.mem_peak_bytes > 0
    assert cells.mem_source in {"vm_hwm", "max_rss"}
