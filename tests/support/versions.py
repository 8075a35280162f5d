"""Another version of Millrace, out of git: brokers of it run from a directory of their own, by the same interpreter.

No second environment is needed: a process that begins there imports what lies there (`broker_process.environment_of`),
and dependencies from where this version has them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker_process import CHECKOUT, environment_of

_PROBE = """
import sys, gateway.cli, gateway.server
names = {packages}
print(*[module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] in names and module.__file__])
"""


class NoSuchVersion(Exception):
    """It cannot be had here; the reason."""


@contextmanager
def checkout_of(revision: str) -> Iterator[Path]:
    """A directory with the files of a revision, until the context ends. Raises NoSuchVersion."""
    git = ["git", "-C", str(CHECKOUT)]
    try:
        subprocess.run([*git, "cat-file", "-e", f"{revision}^{{commit}}"], check=True, capture_output=True)
    except FileNotFoundError as error:
        raise NoSuchVersion("there is no git") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise NoSuchVersion(f"git has no commit {revision}, as in a shallow clone or none at all: {said}") from error
    with tempfile.TemporaryDirectory(prefix="millrace-version-") as name:
        directory = Path(name).resolve()
        with subprocess.Popen([*git, "archive", "--format=tar", revision], stdout=subprocess.PIPE) as archive:
            subprocess.run(["tar", "-x", "-C", name], check=True, stdin=archive.stdout)
        assert archive.returncode == 0, f"git archive ended with {archive.returncode}"
        _require_own_code(directory)
        yield directory


def _require_own_code(directory: Path) -> None:
    """All that a broker imports from the packages of Millrace is of this directory. Raises AssertionError."""
    packages = {path.parent.name for path in directory.glob("*/__init__.py")}
    command = [sys.executable, "-c", _PROBE.format(packages=packages)]
    asked = subprocess.run(
        command, cwd=directory, env=environment_of(directory), check=True, capture_output=True, text=True
    )
    files = [Path(file) for file in asked.stdout.split()]
    assert files, f"a broker of {directory} imports nothing"
    strange = [file for file in files if not file.is_relative_to(directory)]
    assert not strange, f"a broker of {directory} imports what is not of it: {strange[:3]}"
