"""Lines of the log, as a process writes them."""

from __future__ import annotations

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
