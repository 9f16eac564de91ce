"""Binds a replica's port for other replicas to the node's own address.

Ray Serve 2.60 opens it on every interface, without authentication, and unpickles what comes in: whoever reaches it
runs code in the replica. On the node's address it is as reachable as the rest of Ray: on loopback, where Ray is.
"""

from importlib import import_module
from typing import Any

import ray


def bind_to_node() -> None:
    """Call it in a deployment's constructor: Serve opens the port after that."""
    # A private module, and the only way: the address is written into it.
    replica: Any = import_module("ray.serve._private.replica")
    add_port = replica.add_port_to_grpc_server
    address = node_address(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def add_node_port(server: Any, _: str) -> Any:
        return add_port(server, address)

    replica.add_port_to_grpc_server = add_node_port


def node_address(host: str) -> str:
    """Any free port of `host`, as gRPC writes it."""
    return f"[{host}]:0" if ":" in host else f"{host}:0"
