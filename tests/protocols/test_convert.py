"""The swap of separators goes both ways and loses nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.convert import routing_key_to_topic, topic_to_routing_key


@pytest.mark.parametrize(
    ("topic", "routing_key"),
    [
        ("plant/7/temp", "plant.7.temp"),
        ("plant/v1.2/temp", "plant.v1/2.temp"),
        ("/", "."),
        ("a.b", "a/b"),
        ("+/#", "+.#"),
        ("$SYS/x", "$SYS.x"),
        ("", ""),
    ],
)
def test_known_names(topic: str, routing_key: str) -> None:
    assert topic_to_routing_key(topic) == routing_key
    assert routing_key_to_topic(routing_key) == topic


@given(st.text(alphabet="ab/.\0ü\udc80"))
def test_every_name_comes_back(name: str) -> None:
    assert routing_key_to_topic(topic_to_routing_key(name)) == name
    assert topic_to_routing_key(routing_key_to_topic(name)) == name
