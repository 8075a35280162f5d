"""What records of topics say in their headers of messages that were published as slabs."""

from __future__ import annotations

from core_log.header_blocks import decode_header_block
from routing.facts import pack
from routing.message import NeutralProperties, Properties, Slab
from routing.property_editors import NEUTRAL, to_neutral_raw
from routing.topics.columns import RecordHeaders

ONE, OTHER = (to_neutral_raw(NeutralProperties(headers={"h": value})) for value in ("one", "other"))


def names(block: bytes) -> list[str]:
    return [name for name, _ in decode_header_block(block)]


def test_what_all_messages_have_in_common_is_encoded_once() -> None:
    headers = RecordHeaders()
    properties = Properties(NEUTRAL, ONE, persistent=True)
    slabs = [Slab("x", key, properties, [b"a", b"b"]) for key in ("k", "l")]
    first = headers.blocks(slabs[0])
    assert isinstance(first, bytes)
    assert headers.blocks(slabs[1]) is first
    assert headers.blocks(Slab("y", "k", properties, [b"a"])) == first


def test_messages_that_differ_have_a_block_each_equal_to_what_each_would_have_alone() -> None:
    for says in (False, True):
        headers = RecordHeaders()
        headers.say_source(says)
        facts = [pack(True, ttl_ms=500), pack(True)]
        varied = Slab("x", "k", Properties(NEUTRAL, b"", persistent=True), [b"a", b"b"], raws=[ONE, OTHER], facts=facts)
        found = headers.blocks(varied)
        assert isinstance(found, list)
        assert ["millrace.expiration-ms" in names(block) for block in found] == [True, False]
        alone = headers.blocks(Slab("x", "k", Properties(NEUTRAL, OTHER, persistent=True), [b"b"]))
        assert found[1] == alone


def test_where_messages_were_published_is_said_as_long_as_it_is_asked_for() -> None:
    headers = RecordHeaders()
    slab = Slab("x", "k", Properties(NEUTRAL, ONE, persistent=True), [b"a"])
    before = headers.blocks(slab)
    headers.say_source(True)
    said = headers.blocks(slab)
    assert isinstance(before, bytes)
    assert isinstance(said, bytes)
    assert set(names(before)) < set(names(said))
    assert b"x" in [value for _, value in decode_header_block(said)]
    headers.say_source(False)
    assert headers.blocks(slab) == before
