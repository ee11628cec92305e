"""Where names of sweeps, profiles and templates lead to."""

from __future__ import annotations

import grp
import os
import pwd
import struct
from typing import TYPE_CHECKING

import pytest

from hpcsweep.errors import ProfileError, SpecError
from hpcsweep.spec import lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return a working directory, a home and a package of the test's own."""
    found = {name: tmp_path / name for name in ("work", "config", "package")}
    for path in found.values():
        path.mkdir()
    (found["package"] / "_data").mkdir()
    monkeypatch.chdir(found["work"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(found["config"]))
    monkeypatch.setattr(lookup, "_PACKAGE", found["package"])
    return {
        "work": found["work"],
        "config": found["config"] / "hpcsweep",
        "package": found["package"] / "_data",
    }


def put(root: Path, name: str) -> Path:
    """Write a profile below a place."""
    path = root / "cluster_profiles" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("launcher: local\n")
    return path


def test_the_working_directory_goes_before_the_home_and_the_package(places) -> None:
    """Each place hides the ones after it."""
    for place in ("package", "config", "work"):
        path = put(places[place], "l40.yaml")
        assert lookup.find(lookup.PROFILES, "l40").resolve() == path.resolve()


def test_an_explicit_path_is_taken_as_it_is(places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative, absolute, below the home, with or without a suffix."""
    path = put(places["work"], "mine.yaml")
    bare = places["work"] / "bare"
    bare.write_text("a: 1\n")
    monkeypatch.setenv("HOME", str(places["work"]))
    for name in ("cluster_profiles/mine.yaml", str(path), "~/cluster_profiles/mine.yaml", path):
        assert lookup.find(lookup.PROFILES, name).resolve() == path.resolve()
    assert lookup.find(lookup.PROFILES, "bare").resolve() == bare.resolve()


def test_the_path_of_a_clone_means_the_name_where_there_is_no_such_folder(places) -> None:
    """Help and pages write `cluster_profiles/l40.yaml`; a mistake in one's own folder stays one."""
    path = put(places["package"], "l40.yaml")
    assert lookup.find(lookup.PROFILES, "cluster_profiles/l40.yaml") == path
    with pytest.raises(SpecError, match="no such file"):
        lookup.find(lookup.SWEEPS, "cluster_profiles/l40.yaml", SpecError)
    put(places["work"], "mine.yaml")
    with pytest.raises(ProfileError, match="no such file"):
        lookup.find(lookup.PROFILES, "cluster_profiles/l40.yaml", ProfileError)


def test_a_folder_of_the_same_name_does_not_hide_a_profile(places) -> None:
    """People keep results in folders named after the GPU."""
    path = put(places["package"], "v100.yaml")
    (places["work"] / "v100").mkdir()
    assert lookup.find(lookup.PROFILES, "v100") == path
    assert lookup.find(lookup.PROFILES, "v100/").is_dir()  # whoever reads it complains


def test_without_xdg_the_config_is_below_the_home(
    places, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the XDG base directory specification has it."""
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = put(tmp_path / ".config" / "hpcsweep", "mine.yaml")
    assert lookup.find(lookup.PROFILES, "mine") == path


def test_every_name_is_listed_once_with_the_file_that_it_means(places) -> None:
    """Sorted; other files in the folder are no profiles."""
    put(places["package"], "l40.yaml")
    put(places["package"], "v100.yml")
    put(places["package"], "schema.json")
    mine = put(places["work"], "l40.yaml")
    found = lookup.names(lookup.PROFILES)
    assert list(found) == ["l40", "v100"]
    assert found["l40"].resolve() == mine.resolve()


def test_an_unknown_name_lists_what_exists_and_the_nearest(places) -> None:
    """The caller's kind of error, one line."""
    put(places["package"], "mi250.yaml")
    put(places["work"], "v100.yaml")
    with pytest.raises(ProfileError) as caught:
        lookup.find(lookup.PROFILES, "m250", ProfileError)
    assert str(caught.value) == (
        "m250: no such name in cluster_profiles/; there are mi250, v100; did you mean 'mi250'?"
    )


def test_a_missing_file_names_the_nearest_in_its_folder(places) -> None:
    """A path is not searched for elsewhere."""
    put(places["work"], "v100.yaml")
    with pytest.raises(SpecError, match=r"no such file; did you mean 'v100\.yaml'"):
        lookup.find(lookup.PROFILES, "cluster_profiles/v10.yaml", SpecError)
    with pytest.raises(SpecError, match="nor is there a directory none"):
        lookup.find(lookup.PROFILES, "none/v100.yaml", SpecError)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "x" * 5000 + ".yaml", "../none"])
def test_names_that_no_file_can_have_are_unknown_names(places, name: str) -> None:
    """And not errors of the operating system."""
    with pytest.raises(SpecError, match="no such"):
        lookup.find(lookup.SWEEPS, name, SpecError)


def test_templates_are_found_in_the_same_places(places) -> None:
    """The folders that exist, the first to be asked first."""
    for place in ("work", "package"):
        (places[place] / lookup.TEMPLATES).mkdir(parents=True)
    found = [path.resolve() for path in lookup.folders(lookup.TEMPLATES)]
    assert found == [places[place].resolve() / lookup.TEMPLATES for place in ("work", "package")]


@pytest.mark.parametrize("kind", ["file", "link", "link into a folder"])
def test_a_file_that_others_may_write_is_not_taken_nor_what_is_beside_it(
    places, tmp_path: Path, kind: str
) -> None:
    """What is beside it may extend it; a link that leads nowhere harms nobody."""
    path = put(places["work"], "mine.yaml")
    path.with_name(".#mine.yaml").symlink_to("nobody@nowhere")
    assert "mine" in lookup.names(lookup.PROFILES)
    real = put(tmp_path, "base.yaml")
    if kind == "file":
        path.chmod(0o666)
    else:
        path.with_name("base.yaml").symlink_to(real)
        (real if kind == "link" else real.parent).chmod(0o777)
    with pytest.warns(UserWarning, match="cluster_profiles is not taken: others may write"):
        assert lookup.names(lookup.PROFILES) == {}


@pytest.fixture
def of_group(
    places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Path]]:
    """Return what makes a folder that its group may write, a profile in it, and that group."""

    def make(
        name: str = "ada", *, primary: bool = True, members: str = "", accounts: str = ""
    ) -> Path:
        path, uid = put(places["work"], "mine.yaml"), os.getuid()
        path.parent.chmod(0o2775)
        gid = path.parent.stat().st_gid
        me = pwd.struct_passwd(("ada", "x", uid, gid if primary else gid + 1, "", "/", "/bin/sh"))
        group = grp.struct_group((name, "x", gid, members.split()))
        (passwd := tmp_path / "passwd").write_text(accounts.format(uid=uid, gid=gid))
        monkeypatch.setattr(pwd, "getpwuid", {uid: me}.__getitem__)
        monkeypatch.setattr(grp, "getgrgid", {gid: group}.__getitem__)
        monkeypatch.setattr(lookup, "_ACCOUNTS", passwd)
        lookup._is_private.cache_clear()
        return path

    yield make
    lookup._is_private.cache_clear()


@pytest.mark.parametrize(
    "group", [
        {}, {"members": "ada"},
        {"accounts": "ada:x:{uid}:{gid}::/:/bin/sh\neve:x:7:8::/:/bin/sh\n"},
    ],
)  # fmt: skip
def test_the_private_group_of_a_user_may_write(of_group, group) -> None:
    """As it may everywhere on a cluster whose umask is 002."""
    path = of_group(**group)
    assert lookup.find(lookup.PROFILES, "mine").resolve() == path


@pytest.mark.parametrize(
    "group", [
        {"name": "users"}, {"primary": False}, {"members": "ada eve"}, {"members": "eve"},
        {"accounts": "eve:x:7:{gid}::/:/bin/sh\n"},
    ],
)  # fmt: skip
def test_no_other_group_may_write_what_is_taken(of_group, group) -> None:
    """One that several people are in, or are said to be in by their accounts alone."""
    of_group(**group)
    with (
        pytest.warns(UserWarning, match="is not taken: others may write"),
        pytest.raises(ProfileError, match="no such name"),
    ):
        lookup.find(lookup.PROFILES, "mine", ProfileError)


def test_a_user_or_group_without_a_name_is_nobodys_own(of_group, monkeypatch) -> None:
    """As in a container that does not know the accounts of the cluster."""
    of_group()
    for module, name in ((pwd, "getpwuid"), (grp, "getgrgid")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, {}.__getitem__)
            lookup._is_private.cache_clear()
            with pytest.warns(UserWarning, match="others may write"):
                assert "mine" not in lookup.names(lookup.PROFILES)


def test_a_list_of_accounts_behind_the_bits_of_the_group_counts(of_group) -> None:
    """The bits are then those that anyone on the list may have at most."""
    path = of_group()
    owner, named, group, mask, other = (1, 7, -1), (2, 6, 7), (4, 5, -1), (16, 7, -1), (32, 5, -1)
    entries = [struct.pack("<HHi", *one) for one in (owner, named, group, mask, other)]
    try:
        os.setxattr(path.parent, lookup._ACL, struct.pack("<I", 2) + b"".join(entries))
    except OSError as error:
        pytest.skip(f"this file system has no such lists: {error}")
    with pytest.warns(UserWarning, match="others may write"):
        assert "mine" not in lookup.names(lookup.PROFILES)
