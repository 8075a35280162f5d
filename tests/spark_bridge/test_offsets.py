"""Options of a read, and the ranges they resolve to."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.native.clients.blocking import KnownTopic
from protocols.native.errors import UnknownTopic
from spark_bridge.offsets import DataLoss, OffsetRange, divide, resolve
from spark_bridge.options import OptionError, ReadOptions, parse_options, parse_sink_options


class Log:
    """Topics as lists of partitions, each (log start offset, timestamps of the records from there on)."""

    def __init__(self, topics: dict[str, list[tuple[int, list[int]]]]) -> None:
        self.logs = topics

    def topics(self, names: Sequence[str] | None = None) -> dict[str, KnownTopic]:
        for name in names or ():
            if name not in self.logs:
                raise UnknownTopic
        return {name: KnownTopic(list(range(len(self.logs[name]))), b"") for name in names or self.logs}

    def list_many_offsets(self, wanted: Sequence[tuple[str, int, str | int]]) -> list[int | None]:
        return [self._offset(*one) for one in wanted]

    def _offset(self, topic: str, partition: int, which: str | int) -> int | None:
        start, times = self.logs[topic][partition]
        if which == "earliest":
            return start
        if which == "latest":
            return start + len(times)
        return next((start + index for index, time in enumerate(times) if time >= int(which)), None)


LOG = Log(
    {
        "a": [(0, [100, 200, 300]), (5, [150, 250]), (0, [])],
        "b": [(0, [1000])],
        "ab": [(0, [1])],
    }
)


def options(**given: str) -> ReadOptions:
    return parse_options({"bootstrap.servers": "h:1", **given})


def ranges(log: Log = LOG, **given: str) -> list[tuple[str, int, int, int]]:
    chosen = options(**given)
    found = [one for task in divide(resolve(log, chosen), chosen) for one in task]
    return [(one.topic, one.partition, one.start_offset, one.end_offset) for one in found]


A_ALL = [("a", 0, 0, 3), ("a", 1, 5, 7)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": "a"}, A_ALL),
        ({"subscribe": " b , a,a "}, [*A_ALL, ("b", 0, 0, 1)]),
        ({"SUBSCRIBE": "b"}, [("b", 0, 0, 1)]),
        ({"subscribePattern": "a.?"}, [*A_ALL, ("ab", 0, 0, 1)]),
        ({"subscribePattern": "a"}, A_ALL),
        ({"subscribePattern": "nothing"}, []),
        ({"assign": '{"a": [1], "b": [0]}'}, [("a", 1, 5, 7), ("b", 0, 0, 1)]),
        ({"subscribe": "a", "startingOffsets": "earliest", "endingOffsets": "latest"}, A_ALL),
        ({"assign": '{"a": [0]}', "startingOffsets": '{"a": {"0": 1}}'}, [("a", 0, 1, 3)]),
        ({"assign": '{"a": [0, 1]}', "startingOffsets": '{"a": {"0": -2, "1": 6}}'}, [("a", 0, 0, 3), ("a", 1, 6, 7)]),
        ({"assign": '{"a": [0, 1]}', "endingOffsets": '{"a": {"0": 2, "1": -1}}'}, [("a", 0, 0, 2), ("a", 1, 5, 7)]),
        ({"assign": '{"a": [0]}', "startingOffsets": '{"a": {"0": 3}}'}, []),
        ({"subscribe": "a", "startingTimestamp": "150"}, None),
        ({"assign": '{"a": [0, 1]}', "startingTimestamp": "150"}, [("a", 0, 1, 3), ("a", 1, 5, 7)]),
        ({"assign": '{"a": [0, 1]}', "endingTimestamp": "250"}, [("a", 0, 0, 2), ("a", 1, 5, 6)]),
        ({"assign": '{"a": [0, 1]}', "endingTimestamp": "9999"}, A_ALL),
        ({"assign": '{"a": [0, 1]}', "startingTimestamp": "160", "endingTimestamp": "160"}, []),
        ({"assign": '{"a": [0, 1]}', "startingTimestamp": "260"}, None),
        (
            {
                "assign": '{"a": [0, 1]}',
                "startingTimestamp": "260",
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [("a", 0, 2, 3)],
        ),
        (
            {
                "assign": '{"a": [0, 1]}',
                "startingOffsetsByTimestamp": '{"a": {"0": 201, "1": 201}}',
                "endingOffsetsByTimestamp": '{"a": {"0": 300, "1": 300}}',
            },
            [("a", 1, 6, 7)],
        ),
        ({"assign": '{"a": [1]}', "startingOffsets": '{"a": {"1": 4}}'}, DataLoss),
        ({"assign": '{"a": [1]}', "startingOffsets": '{"a": {"1": 4}}', "failOnDataLoss": "false"}, [("a", 1, 5, 7)]),
        ({"assign": '{"a": [1]}', "endingOffsets": '{"a": {"1": 8}}'}, DataLoss),
        ({"assign": '{"a": [1]}', "endingOffsets": '{"a": {"1": 3}}'}, DataLoss),
        ({"assign": '{"a": [1]}', "endingOffsets": '{"a": {"1": 3}}', "failOnDataLoss": "false"}, []),
        ({"assign": '{"a": [1]}', "endingOffsets": '{"a": {"1": 8}}', "failOnDataLoss": "False"}, [("a", 1, 5, 7)]),
        (
            {"subscribe": "a", "minPartitions": "5"},
            [("a", 0, 0, 1), ("a", 0, 1, 2), ("a", 0, 2, 3), ("a", 1, 5, 6), ("a", 1, 6, 7)],
        ),
        ({"subscribe": "a", "minPartitions": "1"}, A_ALL),
    ],
)
def test_ranges(given: dict[str, str], expected: list[tuple[str, int, int, int]] | type[Exception] | None) -> None:
    if isinstance(expected, list):
        assert ranges(**given) == expected
    else:
        with pytest.raises(expected or OptionError):
            ranges(**given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "one of the options subscribe, subscribePattern, assign, queue, mqtt.filter is needed"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "subscribe and assign contradict"),
        ({"subscribe": "a", "startingTimestamp": "1", "startingOffsets": "earliest"}, "contradict"),
        ({"subscribe": "a", "endingTimestamp": "1", "endingOffsetsByTimestamp": "{}"}, "contradict"),
        ({"subscribe": "a", "millrace.servers": "h:2"}, "millrace.servers and bootstrap.servers contradict"),
        (
            {"subscribe": "a", "maxOffsetsPerTrigger": "5"},
            "unknown option 'maxOffsetsPerTrigger'; the options of read are",
        ),
        ({"subscribe": "a", "path": "x"}, "unknown option 'path'"),
        ({"subscribe": " , "}, "subscribe is empty"),
        ({"subscribe": "nowhere"}, "there is no topic 'nowhere'"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"assign": "a"}, "assign is not JSON"),
        ({"assign": "[0]"}, "must be a JSON object"),
        ({"assign": '{"a": 0}'}, "must look like"),
        ({"assign": '{"a": [0.5]}'}, "must look like"),
        ({"assign": '{"a": [true]}'}, "must look like"),
        ({"assign": '{"a": []}'}, "names no partition"),
        ({"assign": '{"a": [3]}'}, "topic 'a' has no partition 3"),
        ({"assign": '{"c": [0]}'}, "there is no topic 'c'"),
        ({"subscribe": "a", "startingOffsets": "latest"}, r"cannot start at latest"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, r"cannot end at earliest"),
        ({"subscribe": "b", "startingOffsets": '{"b": {"0": -1}}'}, r"cannot start at latest"),
        ({"subscribe": "b", "endingOffsets": '{"b": {"0": -2}}'}, r"cannot end at earliest"),
        ({"subscribe": "b", "startingOffsets": '{"b": {"0": -3}}'}, "-3 is no offset"),
        ({"subscribe": "b", "startingOffsets": '{"b": {"0": "1"}}'}, "must look like"),
        ({"subscribe": "b", "startingOffsets": '{"b": {"zero": 1}}'}, "must look like"),
        ({"subscribe": "b", "startingOffsets": '{"b": [1]}'}, "must look like"),
        ({"subscribe": "b", "startingOffsets": "soon"}, "startingOffsets is not JSON"),
        ({"subscribe": "b", "startingOffsetsByTimestamp": '{"b": {"0": -1}}'}, "-1 is no timestamp"),
        ({"subscribe": "b", "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"subscribe": "b", "startingTimestamp": str(2**63)}, "startingTimestamp must be milliseconds since 1970"),
        ({"subscribe": "b", "endingTimestamp": "9" * 5_000}, "endingTimestamp must be milliseconds since 1970"),
        ({"subscribe": "b", "startingOffsetsByTimestamp": f'{{"b": {{"0": {2**63}}}}}'}, "is no timestamp"),
        ({"subscribe": "b", "endingOffsets": f'{{"b": {{"0": {2**64}}}}}'}, "is no offset"),
        ({"subscribe": "b", "minPartitions": "9" * 5_000}, "minPartitions must be a number from 1"),
        ({"subscribe": "b", "startingTimestamp": "2000"}, "no record of b-0 is that late"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": 1}}'}, "does not name a-1, a-2"),
        ({"subscribe": "b", "startingOffsets": '{"b": {"0": 0, "1": 0}}'}, "names b-1"),
        (
            {"subscribe": "b", "startingOffsets": '{"b": {"0": 1}}', "endingOffsets": '{"b": {"0": 0}}'},
            "after the ending offset 0",
        ),
        ({"subscribe": "b", "failOnDataLoss": "no"}, "failOnDataLoss must be true or false"),
        ({"subscribe": "b", "includeHeaders": "1"}, "includeHeaders must be true or false"),
        ({"subscribe": "b", "minPartitions": "0"}, "minPartitions must be a number from 1"),
        ({"subscribe": "b", "startingOffsetsByTimestampStrategy": "latest"}, "is for startingTimestamp"),
        (
            {"subscribe": "b", "startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "x"},
            "must be error or latest",
        ),
    ],
)
def test_refusals(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        ranges(**given)


def test_a_server_is_needed() -> None:
    with pytest.raises(OptionError, match=r"one of the options millrace\.servers, bootstrap\.servers"):
        parse_options({"subscribe": "a"})


@pytest.mark.parametrize("name", ["millrace.servers", "bootstrap.servers", "kafka.bootstrap.servers"])
def test_servers(name: str) -> None:
    assert parse_options({"subscribe": "a", name: "one:1, two:2"}).servers == ("one:1", "two:2")


@pytest.mark.parametrize("text", [" , ", "one", "one:x", "one:1, two"])
def test_servers_that_are_none_are_told_by_the_option(text: str) -> None:
    given = {"millrace.servers": text}
    for parse in (partial(parse_options, given | {"subscribe": "a"}), partial(parse_sink_options, given)):
        with pytest.raises(OptionError, match=r"^millrace\.servers"):
            parse()


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({"topic": "%"}, 255),
        ({"topic": "t", "txnAppId": "%", "txnVersion": "1"}, 222),
        ({"subscribe": "a", "kafka.group.id": "%"}, 255),
        ({"subscribe": "a", "groupIdPrefix": "%"}, 242),
        ({"queue": "%"}, 255),
    ],
)
def test_names_that_no_broker_would_take_are_refused_by_the_option(given: dict[str, str], most: int) -> None:
    option = next(name for name, value in given.items() if value == "%")
    reads = "subscribe" in given or "queue" in given
    parse = partial(parse_options, streaming=True) if reads else parse_sink_options

    def parsed(name: str) -> object:
        return parse({"millrace.servers": "one:1", **{key: value.replace("%", name) for key, value in given.items()}})

    for name in ("", " ", "x" * (most + 1)):
        with pytest.raises(OptionError, match=f"^{option} must be a name of 1 to {most} characters, not '"):
            parsed(name)
    parsed("x" * most)


def test_options_and_ranges_travel_between_processes() -> None:
    everything = options(subscribe="a", startingOffsets='{"a": {"0": 1}}')
    one = OffsetRange("a", 0, 1, 2)
    assert pickle.loads(pickle.dumps((everything, one))) == (everything, one)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 40))
def test_splitting_keeps_every_offset_once(sizes: list[int], count: int) -> None:
    log = Log({"t": [(index, [0] * size) for index, size in enumerate(sizes)]})
    found = ranges(log, subscribe="t", minPartitions=str(count))
    covered = [(partition, offset) for _, partition, start, end in found for offset in range(start, end)]
    assert covered == [(index, index + n) for index, size in enumerate(sizes) for n in range(size)]
    assert all(start < end for _, _, start, end in found)


@given(st.dictionaries(st.sampled_from(["assign", "startingOffsets", "endingOffsets", "startingTimestamp"]), st.text()))
def test_nothing_but_option_errors_for_nonsense(given_options: dict[str, str]) -> None:
    try:
        options(**given_options)
    except OptionError:
        pass


@pytest.mark.parametrize(
    ("sizes", "given", "tasks"),
    [
        ([250, 250, 250, 250], {}, [4]),
        ([2_000, 3_000, 1, 6_000, 4_000], {}, [2, 1, 1, 1]),
        ([1] * 25, {}, [20, 5]),
        ([250, 250], {"minPartitions": "2"}, [1, 1]),
        ([100, 100, 300], {"maxRecordsPerPartition": "600"}, [2, 1]),
        ([100, 100], {"maxRecordsPerPartition": "80"}, [1, 1, 1, 1]),
    ],
)
def test_small_ranges_are_one_task(sizes: list[int], given: dict[str, str], tasks: list[int]) -> None:
    ranges = [OffsetRange("a", number, 7, 7 + size) for number, size in enumerate(sizes)]
    found = divide(ranges, options(subscribe="a", **given))
    assert [len(task) for task in found] == tasks
    read = [
        (one.partition, offset) for task in found for one in task for offset in range(one.start_offset, one.end_offset)
    ]
    assert read == [(number, offset) for number, size in enumerate(sizes) for offset in range(7, 7 + size)]
