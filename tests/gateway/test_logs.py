"""Lines of the log, as a process writes them."""

from __future__ import annotations

import os
import subprocess
import sys

SAYS = """
import logging, structlog
from gateway.config import Log
from gateway.logs import configure_logs
configure_logs(Log())
name = "a\\nlevel=error event=forged\\x1b[2J\\u2028b\\udcff"
logging.getLogger("some").warning("the will for %s", name)
structlog.get_logger("other").warning("refused \u00e9", reason=name)
try:
    raise ValueError
except ValueError:
    logging.exception("what")
"""


def test_what_clients_choose_begins_no_line() -> None:
    ran = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, check=True, timeout=60)
    first, second, third, *traceback = ran.stderr.decode().splitlines()
    name = r"a\nlevel=error event=forged\x1b[2J\u2028b\udcff"
    assert first.endswith(f"event=the will for {name}")
    assert second.endswith(f"event=refused é reason={name}")
    assert "exception=Traceback" in third
    assert traceback[-1] == "ValueError"


def test_nobody_waits_for_who_does_not_read_the_log() -> None:
    says = """
import logging
from gateway.config import Log
from gateway.logs import configure_logs
configure_logs(Log())
for number in range(3_000):
    logging.warning("line %d %s", number, "x" * 2_000)
print("goes on", flush=True)
input()
logging.warning("the last")
"""
    with subprocess.Popen(
        [sys.executable, "-c", says], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "goes on\n"
        os.set_blocking(process.stderr.fileno(), False)
        begun = os.read(process.stderr.fileno(), 1 << 20).decode()
        os.set_blocking(process.stderr.fileno(), True)
        process.stdin.write("\n")
        process.stdin.close()
        rest = process.stderr.read()
    whole = begun.count("\n")
    *_, lost, last = (begun + rest).splitlines()
    assert 0 < whole < 3_000
    assert lost.endswith(f"event={3_000 - whole} lines of the log are lost, as they were not read")
    assert last.endswith("event=the last")
