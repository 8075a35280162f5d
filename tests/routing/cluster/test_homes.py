"""Queues of which several brokers have replicas: a broker dies, and another has them as they were."""

from __future__ import annotations

import random
from functools import partial
from itertools import count
from typing import Any

import pytest
import trio

from routing.cluster.clients.orders import for_queues
from routing.cluster.clients.remote_home import RemoteHome
from routing.errors import StorageUnavailable
from routing.facts import pack
from routing.message import Properties, Slab
from routing.queues.homes.destination_sets import DestinationSet
from routing.queues.homes.queue_partition import QueuePartition
from routing.session import Outcome
from tests.routing.harness import PERSISTENT, PROTOCOL, Client, Delivery
from tests.support.home_cluster import Member, mesh, until
from tests.support.replica_node import bytes_of

Body = str


def home_of(member: Member, queue: str) -> int:
    return member.broker.topology.queues[queue].partition.index


async def all_committed(member: Member, index: int) -> None:
    """Everything that was done is on all disks that count; settlements alone have nobody who waits for them."""
    log = member.log(index)

    def is_committed() -> bool:
        member.turn()
        log.request_sync()
        return log.high_watermark == log.log_end_offset

    await until(is_committed)


async def test_confirmed_messages_outlive_their_leader() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        await one.queue("q")
        index = home_of(one, "q")
        assert one.leads(index), "declared where it is led"
        client = one.client()
        await client.publish_safely("q", *range(100))
        await client.consume("q")
        client.session.set_prefetch(10, per_session=True)
        assert client.take_bodies() == [str(n) for n in range(10)]
        client.ack(1, 5)
        await all_committed(one, index)
        await brokers.kill(1)
        leader = await brokers.settled(index)
        assert leader.me != 1
        assert leader.count("q") == 95
        assert await leader.drain("q") == [(str(n), True) for n in range(5, 100)]


QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "levels": {"x-max-priority": 3},
    "late": {"x-delayed": True},
    "mortal": {"x-message-ttl": 3_600_000},
    "counted": {"x-queue-type": "quorum", "x-delivery-limit": 50},
    "limited": {"x-max-length-bytes": 1 << 30},
    "kept": {"x-retain": "1h"},
    "grouped": {"x-group-by": "routing-key"},
}
FAR_MS = 1_800_000


class Model:
    """What there is, by queue: body -> (priority, delayed)."""

    def __init__(self) -> None:
        self.there: dict[str, dict[Body, tuple[int, bool]]] = {name: {} for name in QUEUES}
        self.returns: dict[Body, int] = {}
        self.number = 0

    def publish(self, client: Client, dice: random.Random) -> None:
        """One slab to a queue, or to all."""
        queue = dice.choice([*QUEUES, ""])
        count = dice.choice((1, 1, 5, 40))
        bodies = [f"{number}" + "." * dice.randrange(20) for number in range(self.number, self.number + count)]
        self.number += count
        facts = None
        if dice.random() < 0.6:
            delay = FAR_MS if queue in ("late", "") else 0
            facts = [
                pack(True, dice.randrange(5), dice.choice((None, FAR_MS)), dice.choice((0, delay))) for _ in bodies
            ]
        common = Properties(PROTOCOL, b"", persistent=True)
        slab = Slab("" if queue else "amq.fanout", queue, common, [body.encode() for body in bodies], facts=facts)
        client.session.publish(slab, confirm=True)
        for name in [queue] if queue else QUEUES:
            for place, body in enumerate(bodies):
                fact = facts[place] if facts is not None else 1
                self.there[name][body] = fact >> 1 & 255, name == "late" and fact >> 42 > 0

    def expected(self, queue: str) -> list[Body]:
        """In the order in which they are given out."""
        there = self.there[queue]
        ready = [body for body, (_, is_delayed) in there.items() if not is_delayed]
        arguments = QUEUES[queue]
        highest = arguments.get("x-max-priority", 31 if "x-queue-type" in arguments else 0)
        return sorted(ready, key=lambda body: -min(there[body][0], highest))


def settle_some(client: Client, queue_of: dict[str, str], model: Model, dice: random.Random) -> None:
    """Whatever a client does with what it has; `queue_of` is by consumer tag."""
    taken: list[Delivery] = client.take()
    for delivery in taken:
        queue = queue_of[delivery.tag]
        choice = dice.random()
        assert delivery.body in model.there[queue]
        if choice < 0.4:
            client.session.settle(delivery.id, delivery.id, Outcome.ACK)
            del model.there[queue][delivery.body]
        elif choice < 0.55:
            client.session.settle(delivery.id, delivery.id, Outcome.REQUEUE)
            if queue == "counted":
                model.returns[delivery.body] = model.returns.get(delivery.body, 0) + 1


async def check(leader: Member, model: Model) -> None:
    """The queues are what the model says, all of it marked; it is still there afterwards."""
    counted = leader.broker.topology.queues["counted"]
    assert counted.returns is not None
    found = sorted(tries.returns for tries in counted.returns.tries.values())
    there = model.there["counted"]
    assert found == sorted(count for body, count in model.returns.items() if body in there)
    for name in QUEUES:
        queue = leader.broker.topology.queues[name]
        expected = model.expected(name)
        assert leader.count(name) == len(expected), name
        assert queue.rules.delayed_count == len(model.there[name]) - len(expected), name
        client = leader.client()
        await client.consume(name)
        taken = client.take()
        while len(taken) < len(expected):
            await leader.until(lambda client=client: bool(client.deliveries))  # type: ignore[misc]
            taken += client.take()
        assert all(delivery.redelivered for delivery in taken), name
        bodies = [delivery.body for delivery in taken]
        assert (sorted(bodies) == sorted(expected)) if name == "grouped" else (bodies == expected), name
        if name == "limited":
            assert queue.rules.sizes is not None
            assert queue.rules.sizes.waiting_bytes == 0
        client.session.close()
        if name == "limited":
            assert queue.rules.sizes is not None
            assert queue.rules.sizes.waiting_bytes == sum(map(len, expected))


@pytest.mark.parametrize("seed", range(3))
async def test_queues_are_as_they_were(seed: int) -> None:
    dice = random.Random(seed)
    async with mesh(checkpoint_interval_bytes=20_000) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        for name, arguments in QUEUES.items():
            await one.queue(name, arguments=arguments)
            await one.bind("amq.fanout", name)
        model = Model()
        leader, disks = await brokers.settled(0), {}
        for _ in range(2):
            publisher, client = leader.client(), leader.client()
            client.session.set_prefetch(30, per_session=False)
            client.session.prefetch_default = 30
            tags = {name: name for name in QUEUES}
            for name in QUEUES:
                await client.consume(name, tag=name)
            for _ in range(40):
                model.publish(publisher, dice)
                if dice.random() < 0.5:
                    leader.turn()
                    await trio.sleep(dice.choice((0, 0.002)))
                settle_some(client, tags, model, dice)
            leader.turn()
            wanted = publisher.session.confirms.published
            await leader.until(lambda publisher=publisher, wanted=wanted: publisher.confirmed >= wanted)  # type: ignore[misc]
            settle_some(client, tags, model, dice)
            await all_committed(leader, 0)
            disks[leader.me] = await brokers.kill(leader.me)
            leader = await brokers.settled(0)
            await check(leader, model)
            model.returns = {body: model.returns.get(body, 0) + 1 for body in model.there["counted"]}
            for gone, files in list(disks.items()):
                del disks[gone]
                await brokers.add(gone, files)
            leader = await brokers.settled(0)
        await all_committed(leader, 0)
        await until(lambda: len({member.log(0).log_end_offset for member in brokers.members.values()}) == 1)
        await until(lambda: len({bytes_of(member.log(0)) for member in brokers.members.values()}) == 1)


@pytest.mark.parametrize("limit", [{"x-max-length": 2}, {"x-max-length-bytes": 9}])
async def test_what_is_not_committed_yet_counts_against_a_limit_that_refuses(limit: dict[str, int]) -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        await one.queue("q", arguments={**limit, "x-overflow": "reject-publish"})
        client = one.client()
        for number in range(5):
            client.publish("q", f"{number:04}", confirm=True)
        one.turn()
        await until(lambda: client.confirmed == 2 or ("confirm", 5) in client.events)
        assert one.count("q") == 2
        assert [event for event in client.events if event[0] == "refuse"]
        assert [body for body, _ in await one.drain("q")] == ["0000", "0001"]


async def test_what_has_waited_too_long_is_refused_and_consumers_go_on_without_it() -> None:
    async with mesh(patience_s=0.4, serve_each_other=True) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        publisher, client = one.client(), one.client()
        await publisher.publish_safely("q", *range(10))
        await client.consume("q")
        assert client.take_bodies() == [str(n) for n in range(10)]
        one.cut()
        publisher.publish("q", "lost", confirm=True)
        one.turn()
        assert publisher.confirmed == 10
        client.ack(1, 5)
        assert client.take_bodies() == [], "nobody is given what is not committed"
        await until(lambda: not one.part.replicas.by_name["home-0"].role.may_append())
        publisher.publish("q", "refused", confirm=True)
        one.turn()
        assert publisher.events[-1] != ("refuse", 12, 12), "it waits, for others to be in sync again"
        await until(lambda: ("refuse", 11, 11) in publisher.events)
        await until(lambda: ("refuse", 12, 12) in publisher.events)
        assert publisher.confirmed == 10
        # Its lease ends: others lead what it led, and it hears of that when it can.
        await brokers.members[2].one.store.revoke(one.one.store.lease_id)
        members = {me: brokers.members.pop(me) for me in (1,)}
        leader = await brokers.settled(0, 2)
        await until(lambda: not one.broker.topology.led)
        client.ack(6, 10)
        one.turn()
        assert leader.count("q") == 10, "what was settled where nobody heard of it comes again"
        queue = one.broker.topology.queues["q"]
        with pytest.raises(StorageUnavailable, match=f"led by broker {leader.me}"):
            queue.head()
        await until(lambda: one.one.members.epoch)
        brokers.link(one)
        brokers.members |= members
        leader = await brokers.settled(0)
        await until(lambda: len(client.deliveries) >= 10)
        again = [(delivery.body, delivery.redelivered) for delivery in client.deliveries]
        assert again == [(str(n), True) for n in range(10)], "what was not committed is gone"
        await all_committed(leader, 0)
        await until(lambda: len({bytes_of(member.log(0)) for member in brokers.members.values()}) == 1)


async def test_what_was_published_in_the_turn_in_which_a_leader_goes_is_sent_to_the_next() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await one.queue("t", durable=False)
        client = one.client()
        client.publish("t", "safe", confirm=True)
        client.publish("q", "open", confirm=True)
        one.part.replicas.registered(0)
        assert not one.broker.topology.led
        one.turn()
        assert client.events == []
        await brokers.members[2].one.store.revoke(one.one.store.lease_id)
        await until(lambda: client.confirmed == 2)
        assert [body for body, _ in await brokers.leader(0).drain("q")] == ["open"]


async def test_publishers_of_a_leader_that_is_cut_off_wait_for_the_next_one() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await one.queue("t", durable=False)
        publisher = one.client()
        await publisher.publish_safely("q", *range(10))
        wire = one.links[0][1]
        publisher.publish("q", *range(10, 20), confirm=True)
        one.turn()
        await until(lambda: brokers.members[2].log(0).log_end_offset == one.log(0).log_end_offset)
        one.cut()
        assert wire.is_cut
        for first in range(20, 50, 5):
            publisher.publish("q", *range(first, first + 5), confirm=True)
            one.turn()
        await until(lambda: not one.part.replicas.by_name["home-0"].role.may_append())
        one.turn()
        for first in range(50, 80, 5):
            publisher.publish("q", *range(first, first + 5), confirm=True)
            one.turn()
        await brokers.members[2].one.store.revoke(one.one.store.lease_id)
        del brokers.members[1]
        leader = await brokers.settled(0, 2)
        await until(lambda: not one.broker.topology.led)
        for first in range(80, 100, 5):
            publisher.publish("q", *range(first, first + 5), confirm=True)
            one.turn()
        assert not [event for event in publisher.events if event[0] == "refuse"]
        await until(lambda: one.one.members.epoch)
        brokers.link(one)
        await until(lambda: publisher.confirmed == 100)
        assert not [event for event in publisher.events if event[0] == "refuse"]
        bodies = [body for body, _ in await leader.drain("q")]
        assert bodies == [str(n) for n in range(100)], "each once, in the order in which they were published"
        brokers.members[1] = one


async def test_what_was_taken_in_the_turn_of_a_hand_over_is_not_taken_again_by_the_next_leader() -> None:
    """It is not in the log yet when the leader finds that all of that is committed."""
    async with mesh(serve_each_other=True) as brokers:
        one, two = brokers.members[1], brokers.members[2]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await until(lambda: "q" in two.broker.topology.queues)
        home, role = one.broker.topology.stripes[0], one.part.role_of("home-0")
        assert isinstance(home, QueuePartition)
        assert role is not None
        replicas, put, asked = one.part.replicas, home.enqueue, 0
        decide, replicas.decide = replicas.decide, lambda other: None if other is role else decide(other)  # type: ignore[misc]

        def enqueue(slab: Slab, destinations: DestinationSet) -> int:
            nonlocal asked
            offset = put(slab, destinations)
            if role.state.transfer is not None:
                asked += 1
                decide(role)  # type: ignore[misc]
            return offset

        home.enqueue = enqueue  # type: ignore[method-assign]
        client, number = two.client(), 0
        await one.one.members.update(draining=True)
        while one.leads(0):
            client.publish("q", str(number), confirm=True)
            number += 1
            two.turn()
            if asked:
                replicas.decide = decide
            with trio.move_on_after(0.1):
                while client.confirmed < number:
                    await trio.sleep(0.001)
        await one.one.members.update(draining=False)
        await until(lambda: client.confirmed == number)
        assert asked
        leader = await brokers.settled(0)
        assert [body for body, _ in await leader.drain("q")] == [str(n) for n in range(number)]


@pytest.mark.parametrize(("pause_s", "exchange"), [(0.0, ""), (0.02, ""), (0.0, "amq.fanout")])
async def test_publishers_do_not_notice_that_a_home_is_handed_over(pause_s: float, exchange: str) -> None:
    """Also where a process stands still for a moment whenever it has looked at the clock; and where the messages go to
    queues that end with the broker as well, whose ids durable ones have, too.
    """
    async with mesh(serve_each_other=True, patience_s=1000) as brokers:
        looks = count()
        for member in brokers.members.values():
            assert member.broker.engine is not None
            member.broker.engine.forwarding.now_s = lambda: trio.current_time() + next(looks) * pause_s
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        if exchange:
            await one.bind(exchange, "q")
            for member in brokers.members.values():
                await until(lambda member=member: "q" in member.broker.topology.queues)  # type: ignore[misc]
                await member.queue(f"of {member.me}", durable=False)
                await member.bind(exchange, f"of {member.me}")
                assert {member.broker.topology.queues[name].id for name in ("q", f"of {member.me}")} == {1}
        publishers = {member: member.client() for member in brokers.members.values()}
        number = dict.fromkeys(publishers, 0)
        going = True

        async def publish(member: Member) -> None:
            client = publishers[member]
            while going:
                client.publish("q", f"{member.me}-{number[member]}", exchange=exchange, confirm=True)
                number[member] += 1
                member.turn()
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            for member in publishers:
                nursery.start_soon(publish, member)
            for _ in range(2):
                leader = brokers.leader(0)
                await trio.sleep(0.05)
                await leader.one.members.update(draining=True)
                await until(lambda leader=leader: any(m.leads(0) for m in publishers if m is not leader))  # type: ignore[misc]
                await leader.one.members.update(draining=False)
                await trio.sleep(0.05)
            going = False
        for member, client in publishers.items():
            await until(lambda client=client, member=member: client.confirmed == number[member])  # type: ignore[misc]
            assert not [event for event in client.events if event[0] == "refuse"]
        leader = await brokers.settled(0)
        bodies = [body for body, _ in await leader.drain("q")]
        for member in publishers:
            own = [body for body in bodies if body.startswith(f"{member.me}-")]
            assert own == [f"{member.me}-{n}" for n in range(number[member])], "in order, and once"


async def test_a_queue_that_another_broker_names_twice_takes_a_message_once() -> None:
    """Brokers of earlier versions may, while the home is handed over."""
    async with mesh(serve_each_other=True) as brokers:
        one, two = brokers.members[1], brokers.members[2]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await until(lambda: "q" in two.broker.topology.queues)
        queue = two.broker.topology.queues["q"]
        assert isinstance(queue.partition, RemoteHome)
        slab = Slab("", "q", PERSISTENT, [b"x"])
        queue.partition.stream.take(1, slab.size, for_queues((queue.id, queue.id), 0, slab))
        two.turn()
        await until(lambda: one.count("q") > 0)
        assert await one.drain("q") == [("x", False)]


async def test_what_a_leader_has_answered_is_not_sent_to_the_next_one_however_late_the_answer_is_heard() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one, two = brokers.members[1], brokers.members[2]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await until(lambda: "q" in two.broker.topology.queues)
        client = two.client()
        await client.publish_safely("q", "first")
        assert two.broker.engine is not None
        forwarding, late = two.broker.engine.forwarding, list[Any]()
        done, not_led = forwarding.done, forwarding.not_led
        forwarding.done = lambda *told: late.append(partial(done, *told))  # type: ignore[method-assign]
        forwarding.not_led = lambda *told, last: late.append(partial(not_led, *told, last=last))  # type: ignore[method-assign]
        client.publish("q", "second", confirm=True)
        two.turn()
        await until(lambda: one.count("q") == 2)
        await one.one.members.update(draining=True)
        await until(lambda: two.part.leader_of("home-0")[0] != 1)
        leader = await brokers.settled(0)
        two.turn()
        forwarding.done, forwarding.not_led = done, not_led  # type: ignore[method-assign]
        assert client.confirmed == 1
        for told in late:
            told()
        two.turn()
        await until(lambda: client.confirmed == 2)
        await client.publish_safely("q", "third")
        assert [body for body, _ in await leader.drain("q")] == ["first", "second", "third"]


async def test_who_is_refused_by_a_leader_to_be_tries_again_without_anything_happening() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one, two = brokers.members[1], brokers.members[2]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await until(lambda: "q" in two.broker.topology.queues)
        assert one.broker.engine is not None
        assert two.broker.engine is not None
        serving, refusals = one.broker.engine.serving, iter(range(3))
        home = serving.home
        serving.home = lambda *asked: home(*asked) if next(refusals, None) is None else None  # type: ignore[method-assign]
        two.broker.engine.forwarding.tick = lambda: None  # type: ignore[method-assign]
        client = two.client()
        client.publish("q", "first", confirm=True)
        two.turn()
        await until(lambda: client.confirmed == 1)
        assert next(refusals, None) is None
        assert not [event for event in client.events if event[0] == "refuse"]


async def test_what_others_have_in_the_place_of_what_was_taken_is_no_answer_to_it() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one, two, three = (brokers.members[me] for me in (1, 2, 3))
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await until(lambda: "q" in two.broker.topology.queues)
        assert one.broker.engine is not None
        publisher = two.client()
        await publisher.publish_safely("q", "first")
        assert two.broker.engine is not None
        (asked,) = (link for leader, link in two.asking if leader is one)
        answers: list[tuple[int, int]] = []
        asked.answering.done = lambda log, epoch, written, committed, refused: answers.append((epoch, committed))  # type: ignore[method-assign]
        for other, mine, theirs in one.links:
            mine.is_cut = theirs.is_cut = True
            for member, link in ((one, mine), (other, theirs)):
                member.part.replicas.follower_lost(link)
                member.part.replicas.leader_lost(link)
            other.links = [link for link in other.links if link[1] is not theirs]
        one.links = []
        publisher.publish("q", "lost", confirm=True)
        two.turn()
        await until(lambda: one.broker.engine.serving.links[2].publisher.logs["home-0"].next_position == 2)  # type: ignore[union-attr]
        await three.one.store.revoke(one.one.store.lease_id)
        leader = await brokers.settled(0, 2)
        client = leader.client()
        await client.publish_safely("q", *range(20))
        await until(lambda: one.one.members.epoch)
        for other in (two, three):
            one.follow(other, brokers.nursery)
            other.follow(one, brokers.nursery)
        await brokers.settled(0)
        await until(lambda: one.log(0).high_watermark == leader.log(0).high_watermark)
        one.turn()
        assert [committed for epoch, committed in answers if epoch == 1 and committed > 1] == []


async def test_space_is_given_back_and_definitions_are_carried_for_a_replica_that_comes_late() -> None:
    async with mesh(2, queue_segment_bytes=20_000) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await one.queue("rare")
        client = one.client()
        await client.publish_safely("rare", "kept")
        home = one.home("q")
        for number in range(20):
            await client.publish_safely("q", *(f"{number}-{n}" + "." * 100 for n in range(50)))
        assert len(await one.drain("q")) == 1000
        await one.drain("rare")
        await client.publish_safely("rare", "again")
        await all_committed(one, 0)
        while one.log(0).log_start_offset < 900:
            home.delete_dead_prefix()
            await all_committed(one, 0)
        late = await brokers.add(3)
        await brokers.settled(0)
        await until(lambda: late.log(0).high_watermark == one.log(0).high_watermark)
        assert late.log(0).log_start_offset >= 900, "with what there is, and no more"
        await client.publish_safely("q", "new")
        disk = await brokers.kill(1)
        await brokers.settled(0)
        await brokers.kill(2)
        await brokers.add(1, disk)
        leader = await brokers.settled(0)
        assert leader is late
        assert await leader.drain("q") == [("new", True)]
        assert await leader.drain("rare") == [("again", True)]


async def test_dead_letters_and_a_reclaimed_home_go_on_at_the_next_leader() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        places = iter((0, 1))
        one.broker.topology.place_queue = lambda queue_id, arguments: next(places)
        await one.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        await one.queue("dead")
        assert one.leads(1), "both are led here"
        client = one.client()
        await client.publish_safely("q", *range(100))
        await client.consume("q")
        taken = client.take()
        client.session.settle(taken[0].id, taken[49].id, Outcome.DISCARD)
        one.turn()
        await until(lambda: one.count("dead") == 50)
        await all_committed(one, 0)
        await all_committed(one, 1)
        await brokers.kill(1)
        leader, other = await brokers.settled(0), await brokers.settled(1)
        assert [body for body, _ in await other.drain("dead")] == [str(n) for n in range(50)]
        assert [body for body, _ in await leader.drain("q")] == [str(n) for n in range(50, 100)]
        await all_committed(leader, 0)
