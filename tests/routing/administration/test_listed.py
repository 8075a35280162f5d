"""What there is to be asked for is told by itself."""

from __future__ import annotations

from core_log.files import MemoryFiles
from routing.administration import CHANGES, LOOKS, OPERATIONS, administer
from routing.administration.listed import listed
from routing.broker import open_broker


async def test_operations_say_what_they_are_asked_with() -> None:
    async with open_broker(MemoryFiles()) as broker:
        found = await administer(broker, "nobody in particular", "operations.list", {})
    rows = {row[0]: dict(zip(found["columns"], row, strict=True)) for row in found["rows"]}
    assert set(rows) == set(OPERATIONS)
    ban = rows["bans.add"]
    assert ban["arguments"] == [
        {"name": "kind", "type": '"client_id" or "user" or "address"', "required": True},
        {"name": "value", "type": "string", "required": True},
        {"name": "until_ms", "type": "integer", "required": False, "default": 0},
        {"name": "reason", "type": "string", "required": False, "default": ""},
        {"name": "force", "type": "boolean", "required": False, "default": False},
    ]
    assert ban["tags"] == list(CHANGES)
    assert "Keep out a client" in ban["description"]
    assert rows["queues.list"]["tags"] == list(LOOKS)
    published = {one["name"]: one for one in rows["messages.publish"]["arguments"]}
    assert rows["messages.publish"]["tags"] is None
    assert published["body"] == {"name": "body", "type": "string or object", "required": False, "default": ""}
    assert published["properties"]["type"] == "object or null"
    assert [one["type"] for one in rows["queues.figures"]["arguments"]] == ["array"]
    assert listed(OPERATIONS, start=len(rows) - 1)["rows"] == found["rows"][-1:]
