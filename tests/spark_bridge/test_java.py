"""Which Java a session gets, and the wrapper around a runtime that lacks a module."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
from pathlib import Path

import pytest

from spark_bridge import java


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No JAVA_HOME, and a path of which the test decides what is on it."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fake_java(directory: Path, version_line: str, *, exit_code: int = 0) -> Path:
    return script(directory / "java", f"echo '{version_line}' >&2\nexit {exit_code}")


@pytest.mark.parametrize(
    ("line", "exit_code", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 0, 17),
        ('openjdk version "25" 2025-09-16', 0, 25),
        ('java version "1.8.0_411"', 0, 8),
        ('openjdk version "21-ea" 2023-09-19', 0, 21),
        ("Unable to locate a Java Runtime.", 1, 0),
        ("Unable to locate a Java Runtime.", 0, 0),
    ],
)
def test_the_version_is_read(tmp_path: Path, line: str, exit_code: int, version: int) -> None:
    assert java.java_version(str(fake_java(tmp_path, line, exit_code=exit_code))) == version


def test_a_runtime_that_is_not_there_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(str(tmp_path / "java")) == 0


def test_java_home_is_taken_as_it_is(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = script(bare / "home" / "bin" / "java", "")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    assert java.ensure_java() == str(expected)
    assert os.environ["JAVA_HOME"] == str(bare / "home")


def test_a_wrong_java_home_is_an_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare))
    with pytest.raises(java.JavaNotFound, match=r"JAVA_HOME is .* no bin/java"):
        java.ensure_java()


def test_a_new_java_on_the_path_is_used_and_nothing_changed(bare: Path) -> None:
    expected = fake_java(bare, 'openjdk version "17.0.1"')
    assert java.ensure_java() == str(expected)
    assert os.environ["JAVA_HOME"] == ""


@pytest.mark.parametrize("on_path", [None, 'openjdk version "11.0.2"', "no runtime present"])
def test_without_a_usable_java_the_package_supplies_one(bare: Path, on_path: str | None) -> None:
    if on_path is not None:
        fake_java(bare, on_path)
    found = java.ensure_java()
    assert found == os.path.join(os.environ["JAVA_HOME"], "bin", "java")
    os.environ["PATH"] = os.defpath
    assert java.java_version(found) >= java.JAVA_VERSION_MIN
    flags = ["--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run([found, *flags], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("on_path", "sentence"), [(None, "there is no java"), ('openjdk version "11.0.2"', "is no Java 17 or newer")]
)
def test_without_any_java_the_error_says_what_to_do(
    bare: Path, monkeypatch: pytest.MonkeyPatch, on_path: str | None, sentence: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    if on_path is not None:
        fake_java(bare, on_path)
    with pytest.raises(java.JavaNotFound, match=rf"{sentence}.*pip install 'millrace\[spark\]'"):
        java.ensure_java()
    assert os.environ["JAVA_HOME"] == ""


def test_the_wrapper_passes_every_other_argument_unchanged(tmp_path: Path) -> None:
    real = script(tmp_path / "a directory with 'quotes'" / "java", """for one in "$@"; do echo "[$one]"; done""")
    wrapper = java._wrapped_home(real) / "bin" / "java"
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=java.sql", "'x'"]
    shown = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert shown == [f"[{one}]" for one in arguments if one != "--add-modules=jdk.incubator.vector"]
