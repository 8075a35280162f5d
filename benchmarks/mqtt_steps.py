"""How many steps the MQTT door and the engine take for one message: Python functions called, and bytecodes they run.

python -m benchmarks.mqtt_steps

A read of one PUBLISH, and one of the PUBACK of who was sent it, from bytes to the end of the turn. Nothing is timed:
after a millisecond without work a step costs three times what it does in a loop, and these figures differ in nothing
from run to run.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from types import FrameType
from typing import Any

import trio

from benchmarks.mqtt_codec import ACKNOWLEDGEMENTS, Scene, read_of
from core_log.memory_files import MemoryFiles
from routing.broker import Broker, open_broker

WARM_UP = 50


async def steps_of(turn: Awaitable[None], broker: Broker) -> tuple[int, int]:
    """Functions that were called, and bytecodes, until the turn has ended."""
    functions = bytecodes = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal functions, bytecodes
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        functions += event == "call"
        bytecodes += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        await turn
        broker.end_turn()
    finally:
        sys.settrace(None)
    return functions, bytecodes


async def main() -> None:
    """Print a table."""
    print(f"{'':24} functions bytecodes")
    for level in (4, 5):
        for qos in (0, 1):
            async with open_broker(MemoryFiles(), users={"guest": "guest"}) as broker:
                scene = Scene(broker, level, qos, 1)
                await scene.open()
                read = read_of(qos, [b"x" * 100], 1, level, False)
                for _ in range(WARM_UP):
                    await scene.round(read, 1)
                publisher, subscriber = scene.publisher.adapter, scene.receivers[0].adapter
                found = {"PUBLISH": await steps_of(publisher.handle(read), broker)}
                if qos:
                    at = 4 * scene.next_id
                    found["PUBACK"] = await steps_of(subscriber.handle(ACKNOWLEDGEMENTS[at : at + 4]), broker)
                for name, (functions, bytecodes) in found.items():
                    version = "5" if level == 5 else "3.1.1"
                    print(f"{version:6} QoS {qos} {name:10} {functions:10} {bytecodes:9}")
                publisher.connection_lost()
                subscriber.connection_lost()


if __name__ == "__main__":
    trio.run(main)
