"""Where names of sweeps, profiles and templates lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpcsweep.errors import ProfileError, SpecError
from hpcsweep.spec import lookup

if TYPE_CHECKING:
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


def test_a_checkout_serves_its_own_folders() -> None:
    """Without a wheel's data, the repository is the package's root."""
    root = lookup.shipped()
    assert (root / "pyproject.toml").is_file()
    assert (root / lookup.SWEEPS / "quickstart.yaml").is_file()
    assert (root / lookup.PROFILES / "l40.yaml").is_file()
