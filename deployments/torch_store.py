"""Has torch's rendezvous store listen where its address says, not on every interface.

Processes of one model (tensor parallel ranks, pipeline stages) find each other through a `TCPStore`, which the first
of them serves at an address that the others are told. PyTorch 2.13 listens on all interfaces all the same, and lets
whoever connects read and write.
"""

import socket
from importlib import import_module
from typing import Any

BACKLOG = 1024  # ranks connect all at once


def bind_to_its_address() -> None:
    """Call it before `torch.distributed.init_process_group`, in the process that does."""
    rendezvous: Any = import_module("torch.distributed.rendezvous")
    if not isinstance(rendezvous.TCPStore, type):
        return  # done already
    rendezvous.TCPStore = bound(rendezvous.TCPStore)


def bound(store: Any) -> Any:
    """`TCPStore`'s constructor, with the master's socket opened on `host_name`."""

    def make(*, host_name: str, port: int, is_master: bool = False, **kwargs: Any) -> Any:
        if is_master:
            kwargs["master_listen_fd"] = listen(host_name, port)
        return store(host_name=host_name, port=port, is_master=is_master, **kwargs)

    return make


def listen(host: str, port: int) -> int:
    """The file descriptor, the caller's, of a socket that listens on `host`.

    Raises:
        OSError: the address isn't this machine's, or is in use.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=BACKLOG).detach()
