"""DescribeCluster: which brokers there are."""

from __future__ import annotations

from protocols.kafka.adapter_03_metadata import NOT_ASKED, cluster_id, controller, nodes
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_admin import DESCRIBE_CLUSTER
from protocols.kafka.registry import serves

_BROKERS = 1


@serves(DESCRIBE_CLUSTER, 0, 2)
async def describe_cluster(door: Door, call: Call, request: Entity) -> Entity:
    """There are no controllers to be talked to but the brokers."""
    if request.endpoint_type != _BROKERS:
        return Entity(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="there are only brokers here",
            endpoint_type=request.endpoint_type,
            cluster_id="",
            brokers=[],
        )
    members = nodes(door)
    return Entity(
        error_code=ErrorCode.NONE,
        cluster_id=cluster_id(door),
        controller_id=controller(door, members),
        brokers=[Entity(broker_id=one.node_id, host=one.host, port=one.port, rack=one.rack) for one in members],
        cluster_authorized_operations=door.operations if request.include_cluster_authorized_operations else NOT_ASKED,
    )
