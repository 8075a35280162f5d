"""Which ids of topics are believed."""

from __future__ import annotations

from protocols.native.clients.topic_ids import TopicIds


def test_a_former_id_is_that_of_a_broker_that_is_behind() -> None:
    ids = TopicIds()
    assert (ids.get("t"), ids.is_another("t", b"one"), ids.is_former("t", b"")) == (b"", False, False)
    said = [(one, ids.note("t", one), ids.get("t")) for one in (b"", b"one", b"", b"two", b"one", b"", b"two", b"six")]
    assert said == [
        (b"", False, b""),
        (b"one", False, b"one"),
        (b"", False, b"one"),
        (b"two", True, b"two"),
        (b"one", False, b"two"),
        (b"", False, b"two"),
        (b"two", False, b"two"),
        (b"six", True, b"six"),
    ]
    assert [ids.is_former("t", one) for one in (b"two", b"six", b"")] == [True, False, False]
    assert [ids.is_another("t", one) for one in (b"two", b"six", b"", b"ten")] == [False, False, False, True]
