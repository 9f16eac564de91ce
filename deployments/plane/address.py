"""Where an ingress process listens, as its calls tell replicas."""

from typing import TypedDict


class Address(TypedDict):
    hub: str  # of that process, unique
    node: str  # Ray's id of its node
    local: str  # its abstract Unix socket, for replicas on that node
    host: str  # of the node, for others
    port: int
    key: bytes  # which both ends prove to know; secret


class ReplyTo(TypedDict):
    """Where one answer's stream goes."""

    address: Address
    ticket: bytes  # 16 bytes that nobody can guess
