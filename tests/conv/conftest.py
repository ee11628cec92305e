"""The real libcudnn as far as it goes without a GPU, and stand-ins for it and for MIOpen."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from hpcsweep.conv.libraries import cudnn_library
from hpcsweep.conv.libraries.cudnn import Cudnn
from hpcsweep.conv.libraries.cudnn_library import CudnnLibrary
from hpcsweep.conv.libraries.miopen import Miopen, MiopenLibrary
from standins import StandIn, compile_library


def _wheel_files(name):
    for package in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        try:
            files = metadata.files(package)
        except metadata.PackageNotFoundError:
            continue
        yield from (file.locate() for file in files if file.name == name)


@pytest.fixture(scope="module")
def real():
    """Return the libcudnn of torch's own wheel."""
    found = next(_wheel_files(cudnn_library.NAME), None)
    if found is None:
        pytest.skip("no cuDNN wheel is installed")
    return CudnnLibrary(str(found))


@pytest.fixture(scope="module")
def header(documented_header):
    """Return the headers that the wheel ships, without comments."""
    return re.sub(r"/\*.*?\*/", "", documented_header, flags=re.DOTALL)


@pytest.fixture(scope="module")
def documented_header():
    """Return the text of the headers that the wheel ships."""
    names = ("cudnn_graph.h", "cudnn_ops.h", "cudnn_cnn.h")
    texts = [path.read_text() for name in names for path in list(_wheel_files(name))[:1]]
    if len(texts) != len(names):
        pytest.skip("no cuDNN headers are installed")
    return "\n".join(texts)


@pytest.fixture(scope="session")
def _cudnn(tmp_path_factory):
    return StandIn(CudnnLibrary, compile_library("pretend/cudnn", tmp_path_factory.mktemp("cudnn")))


@pytest.fixture
def fake(_cudnn):
    """Return cuDNN's stand-in, without memories."""
    _cudnn.forget()
    return _cudnn


@pytest.fixture
def backend(fake):
    """Return a back-end that runs on the stand-in and host memory."""
    return Cudnn(lambda: fake.library, "cpu")


@pytest.fixture(scope="session")
def _miopen(tmp_path_factory):
    return StandIn(MiopenLibrary, compile_library("miopen", tmp_path_factory.mktemp("miopen")))


@pytest.fixture
def fake_miopen(_miopen):
    """Return MIOpen's stand-in, without memories."""
    _miopen.forget()
    return _miopen


@pytest.fixture
def miopen_backend(fake_miopen):
    """Return a back-end that runs on MIOpen's stand-in and host memory."""
    return Miopen(lambda: fake_miopen.library, "cpu")
