"""MQTT.js in a page of a real browser without a window, over WebSocket."""

from __future__ import annotations

import functools
import http.server
import queue
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from tests.conformance.__main__ import CLIENTS, Missing

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
TIMEOUT_S = 60

PAGE = """<!doctype html><meta charset="utf-8"><script src="mqtt.min.js"></script>
<script src="mqttjs.js"></script><script>
const tell = (text) => fetch("/told", {{ method: "POST", body: text }})
window.onerror = (text) => tell("FAILED " + text)
;(async () => {{
  let total = 0
  for (const url of {urls})
    for (const version of {versions}) total += await scenario(mqtt, url, version, {{ qos: {qos} }})
  return total
}})().then((total) => tell("ok " + total), (error) => tell("FAILED " + error))
</script>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the page, and takes what it tells."""

    told: queue.Queue[str]

    def do_POST(self) -> None:
        """What the page found."""
        self.told.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


def browser() -> str:
    """The program. Raises Missing."""
    for name in BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise Missing(f"no browser is installed: {', '.join(BROWSERS)}")


def run(bundle: Path, urls: list[str], versions: list[int], qos: int) -> str:
    """`bundle` is MQTT.js for browsers, which takes any certificate here. Raises Missing, AssertionError."""
    program = browser()
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(bundle, Path(directory, "mqtt.min.js"))
        shutil.copy(CLIENTS / "mqttjs.js", directory)
        Path(directory, "index.html").write_text(PAGE.format(versions=versions, urls=urls, qos=qos))
        told: queue.Queue[str] = queue.Queue()
        handler = type("Told", (Handler,), {"told": told})
        with http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(handler, directory=directory)
        ) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            command = [
                *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--disable-background-networking", "--ignore-certificate-errors"),
                *(f"--user-data-dir={directory}/profile", "--remote-debugging-port=0"),
                f"http://127.0.0.1:{server.server_address[1]}/index.html",
            ]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                said = told.get(timeout=TIMEOUT_S)
            except queue.Empty:
                said = f"FAILED: the page said nothing for {TIMEOUT_S} s"
            finally:
                process.kill()
                process.wait()
                server.shutdown()
    assert said.startswith("ok "), said
    return f"{said[3:]} messages over {len(urls)} transports in {Path(program).name}"
