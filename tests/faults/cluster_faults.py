"""What is done to a shaken cluster: each fault is a generator that does it, yields, and puts it right again.

Members of etcd are killed only where there are three, of a version that loses nothing by it: see `etcd_members.py`.
What they hold is compared before and after.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from tests.support.cluster import ClusterProcesses
from tests.support.peer_relay import PeerRelay
from tests.support.power import PoweredDisk

Fault = Callable[[], Iterator[None]]


class Faults:
    """See the module. `names` are those that this cluster can bear."""

    def __init__(self, cluster: ClusterProcesses, dice: random.Random, disk: PoweredDisk | None = None) -> None:
        self.cluster, self.dice, self.disk = cluster, dice, disk
        self.named: dict[str, Fault] = {
            "kill": self._kill,
            "kill-all": self._kill_all,
            "stop": self._stop,
            "pause": self._pause,
            "pause-all": self._pause_all,
            "kill-with-pause": self._kill_with_pause,
            "isolate": self._isolate,
            "kill-with-isolate": self._kill_with_isolate,
            "cut": self._cut,
            "cut-in-turn": self._cut_in_turn,
            "etcd": self._etcd,
            "full": self._full,
            "full-two": self._full_two,
            "kill-while-full": self._kill_while_full,
            "restart-all": self._restart_all,
        }
        etcd = cluster.etcd
        if disk is not None and (etcd.count == 1 or etcd.may_be_killed):
            self.named["power"] = self._power
        if etcd.count > 1:
            self.named["etcd-pause"] = self._etcd_pause
            self.named["etcd-pause-two"] = self._etcd_pause_two
        if etcd.may_be_killed:
            self.named["etcd-kill"] = self._etcd_kill
            self.named["etcd-kill-leader"] = self._etcd_kill_leader
            self.named["etcd-kill-with-broker"] = self._etcd_kill_with_broker
            self.named["etcd-restart-all"] = self._etcd_restart_all
        elif etcd.count > 1:
            print(f"no member of etcd {etcd.version} is killed: before 3.5.3 that can lose a transaction", flush=True)

    def _victim(self) -> int:
        return self.dice.choice(list(self.cluster.brokers))

    def _victims(self) -> list[int]:
        return self.dice.sample(list(self.cluster.brokers), 2)

    def _in_a_while(self, seconds: float) -> None:
        time.sleep(self.dice.uniform(0, seconds))

    # --- brokers

    def _kill(self) -> Iterator[None]:
        victim = self._victim()
        self.cluster.kill9(victim)
        yield
        self.cluster.restart(victim)

    def _kill_all(self) -> Iterator[None]:
        self.cluster.each(lambda broker: broker.kill9())
        yield
        self.cluster.each(lambda broker: broker.start(same_ports=True))

    def _power(self) -> Iterator[None]:
        assert self.disk is not None
        self.disk.cut(self._end_everything)
        yield
        self.cluster.etcd.start()
        self.cluster.each(lambda broker: broker.start(same_ports=True))

    def _end_everything(self) -> None:
        self.cluster.each(lambda broker: broker.kill9())
        self.cluster.etcd.stop()

    def _stop(self) -> Iterator[None]:
        victim = self._victim()
        code = self.cluster.brokers[victim].terminate()
        assert code == 0, f"broker {victim} stopped with code {code}"
        yield
        self.cluster.restart(victim)

    def _pause(self) -> Iterator[None]:
        victim = self._victim()
        self.cluster.pause(victim)
        yield
        self.cluster.resume(victim)

    def _pause_all(self) -> Iterator[None]:
        victims = list(self.cluster.brokers)
        for victim in victims:
            self.cluster.pause(victim)
        yield
        self.dice.shuffle(victims)
        for victim in victims:
            self.cluster.resume(victim)
            self._in_a_while(1.5)

    def _kill_with_pause(self) -> Iterator[None]:
        killed, paused = self._victims()
        self.cluster.kill9(killed)
        self._in_a_while(3)
        self.cluster.pause(paused)
        yield
        self.cluster.resume(paused)
        self.cluster.restart(killed)

    def _restart_all(self) -> Iterator[None]:
        for victim, broker in self.cluster.brokers.items():
            code = broker.terminate()
            assert code == 0, f"broker {victim} stopped with code {code}"
            self.cluster.restart(victim)
        yield

    def _full(self) -> Iterator[None]:
        yield from self._without_room([self._victim()])

    def _full_two(self) -> Iterator[None]:
        yield from self._without_room(self._victims())

    def _without_room(self, victims: Sequence[int]) -> Iterator[None]:
        processes = [self.cluster.brokers[victim].process for victim in victims]
        for process in processes:
            process.send_signal(signal.SIGUSR1)
        yield
        for process in processes:
            process.send_signal(signal.SIGUSR2)

    def _kill_while_full(self) -> Iterator[None]:
        victim = self._victim()
        self.cluster.brokers[victim].process.send_signal(signal.SIGUSR1)
        self._in_a_while(3)
        self.cluster.kill9(victim)
        yield
        self.cluster.restart(victim)

    # --- links

    @property
    def _relay(self) -> PeerRelay:
        assert self.cluster.relay is not None
        return self.cluster.relay

    def _isolate(self) -> Iterator[None]:
        relay = self._relay
        relay.isolate(self._victim())
        yield
        relay.heal(hang_up=self.dice.random() < 0.5)

    def _cut(self) -> Iterator[None]:
        relay = self._relay
        relay.cut(*self._victims())
        yield
        relay.heal(hang_up=self.dice.random() < 0.5)

    def _cut_in_turn(self) -> Iterator[None]:
        relay = self._relay
        for _ in range(5):
            relay.cut(*self._victims())
            self._in_a_while(1.5)
            relay.heal(hang_up=self.dice.random() < 0.5)
        yield

    def _kill_with_isolate(self) -> Iterator[None]:
        relay, (isolated, killed) = self._relay, self._victims()
        relay.isolate(isolated)
        self._in_a_while(5)
        self.cluster.kill9(killed)
        yield
        relay.heal(hang_up=True)
        self.cluster.restart(killed)

    # --- etcd

    def _etcd(self) -> Iterator[None]:
        self.cluster.pause_etcd()
        yield
        self.cluster.resume_etcd()

    def _etcd_member(self) -> int:
        return self.dice.randrange(self.cluster.etcd.count)

    def _etcd_pause(self) -> Iterator[None]:
        etcd = self.cluster.etcd
        member = etcd.leader() if self.dice.random() < 0.5 else self._etcd_member()
        etcd.signal(member, signal.SIGSTOP)
        yield
        etcd.signal(member, signal.SIGCONT)
        etcd.compare()

    def _etcd_pause_two(self) -> Iterator[None]:
        etcd = self.cluster.etcd
        members = self.dice.sample(range(etcd.count), 2)
        for member in members:
            etcd.signal(member, signal.SIGSTOP)
        yield
        for member in members:
            etcd.signal(member, signal.SIGCONT)
        etcd.compare()

    def _etcd_restart_all(self) -> Iterator[None]:
        etcd = self.cluster.etcd
        for member in range(etcd.count):
            etcd.kill9(member)
            self._in_a_while(1)
            etcd.restart(member)
        yield
        etcd.compare()

    def _etcd_kill(self) -> Iterator[None]:
        yield from self._without_etcd_member(self._etcd_member())

    def _etcd_kill_leader(self) -> Iterator[None]:
        yield from self._without_etcd_member(self.cluster.etcd.leader())

    def _etcd_kill_with_broker(self) -> Iterator[None]:
        victim = self._victim()
        member = self.cluster.etcd.leader() if self.dice.random() < 0.5 else self._etcd_member()
        rounds = self._without_etcd_member(member)
        next(rounds)
        self.cluster.kill9(victim)
        yield
        self.cluster.restart(victim)
        next(rounds, None)

    def _without_etcd_member(self, member: int) -> Iterator[None]:
        etcd = self.cluster.etcd
        etcd.compare()
        etcd.kill9(member)
        yield
        etcd.restart(member)
        etcd.compare()
