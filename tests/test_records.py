"""Dataclasses that are made at their first use are dataclasses in every way."""

from __future__ import annotations

import abc
import dataclasses
import pickle
import subprocess
import sys
import threading
import typing

import pytest

from hpcsweep import records
from hpcsweep.point import Point
from hpcsweep.records import dataclass, field, fields, is_dataclass, replace


@pytest.fixture
def switches():
    """Return what sets the seconds between switches of threads, until the test ends."""
    before = sys.getswitchinterval()
    yield sys.setswitchinterval
    sys.setswitchinterval(before)


def classes():
    """Return a class, one that inherits from it, and one that is no dataclass; none is made."""

    @dataclass(frozen=True)
    class Base:
        """A base."""

        a: int
        b: list[int] = field(default_factory=list)

    @dataclass(frozen=True, kw_only=True)
    class More(Base):
        c: int = 3

    class Plain(More):
        def __init__(self, a: int) -> None:
            super().__init__(a, c=7)

    return Base, More, Plain


def test_an_instance_is_that_of_a_dataclass():
    """In its text, when compared, replaced or changed."""
    base, more, plain = classes()
    assert repr(more(1)).endswith("More(a=1, b=[], c=3)")
    assert plain(1) == plain(1) != plain(2)
    assert replace(base(1), a=2) == base(2)
    assert hash(base(1, ())) == hash(base(1, ()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        base(1).a = 2
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        more()


def test_a_class_without_instance_has_its_fields():
    """Also where it inherits, in whichever order they are asked for."""
    _, more, plain = classes()
    assert is_dataclass(plain)
    assert [one.name for one in fields(more)] == ["a", "b", "c"]
    assert more(1).b is not more(1).b


def test_methods_of_its_own_stay():
    """As with the standard decorator."""

    @dataclass
    class Own:
        a: int = 1

        def __post_init__(self) -> None:
            self.a += 1

        def __repr__(self) -> str:
            return f"own {self.a}"

        def __hash__(self) -> int:
            return 5

    assert (repr(Own()), hash(Own()), Own(), Own(a=4).a) == ("own 2", 5, Own(1), 5)


def test_generic_and_abstract_classes_are_made_as_others():
    """Their bases ask what a subclass was written as."""
    kind = typing.TypeVar("kind")

    @dataclass(frozen=True)
    class Box(abc.ABC, typing.Generic[kind]):
        content: kind

        @abc.abstractmethod
        def opened(self) -> kind:
            """Return the content."""

    @dataclass(frozen=True)
    class Crate(Box[int]):
        lid: bool = True

        def opened(self) -> int:
            return self.content

    assert Crate(3).opened() == 3
    assert Crate(3) == Crate(3, lid=True) != Crate(3, lid=False)
    with pytest.raises(TypeError, match="abstract"):
        Box(1)


def test_many_threads_make_it_once(switches):
    """Each gets whole instances, whenever they take turns."""
    switches(1e-6)
    for _ in range(100):
        base, _, _ = classes()
        together, found = threading.Barrier(8), []

        def make(kind=base, together=together, found=found):
            together.wait()
            found.append(kind(1))

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [base(1)] * 8


def test_what_another_process_pickled_is_equal():
    """There no instance was made before it is read."""
    point = Point("noop", {"model": "a"}, point_id="b")
    code = (
        "import pickle, sys; one, two = (pickle.loads(sys.stdin.buffer.read(n)) for n in "
        f"({len(pickle.dumps(point))},) * 2); print(one == two, one)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(point) * 2, capture_output=True, check=True
    )
    assert done.stdout.decode() == f"True {point!r}\n"


def test_a_class_that_nobody_uses_is_not_made():
    """Which is what it is for."""
    base, more, _ = classes()
    assert isinstance(vars(base)["__dataclass_fields__"], records._Unmade)
    more(1)
    assert not isinstance(vars(base)["__dataclass_fields__"], records._Unmade)
