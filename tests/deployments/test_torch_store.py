"""torch's rendezvous store listens on the address that it is given, in a process of its own as in an engine."""

import subprocess
import sys

import pytest

from tests.waiting import free_port

RENDEZVOUS = """
import socket, sys
import psutil, torch
from deployments import torch_store

if sys.argv[2] == "bound":
    torch_store.bind_to_its_address()
    torch_store.bind_to_its_address()
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=0, world_size=1)
torch.distributed.barrier()
listening = [c.laddr for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
print(*{address.ip for address in listening if address.port == int(sys.argv[1])})
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(("how", "address"), [("bound", "127.0.0.1"), ("as torch does", "::")])
def test_it_listens_where_it_is_told(how: str, address: str) -> None:
    """The second case tells when torch needs this no more."""
    command = [sys.executable, "-c", RENDEZVOUS, str(free_port()), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [address], done.stderr
