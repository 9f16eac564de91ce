"""`enginehouse serve` around a stand-in for `serve run`: what it shows, and that nothing of it stays behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import runner
from app.check import check_file
from app.runner import RunError, Where
from deployments import environment_build, guard, models
from tests.waiting import alive, free_port, wait_until

# Does as the plan says, and notes what it was given. Its answers to /ready come in turn, and the last one stays.
FAKE_SERVE = """
import http.server, json, os, pathlib, signal, subprocess, sys, yaml

folder = pathlib.Path(__file__).parent
plan = json.loads((folder / "plan.json").read_text())
config = yaml.safe_load(pathlib.Path(sys.argv[-1]).read_text())
answers = plan["ready"]


def stop(number, frame):
    (folder / "stopped").touch()
    sys.exit()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer == "exit":
            print("the last word", flush=True)
            os._exit(3)
        body = json.dumps({"pools": answer}) if isinstance(answer, dict) else answer
        self.send_response(503)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


signal.signal(signal.SIGINT, signal.SIG_IGN if plan.get("deaf") else stop)
for number in range(plan.get("lines", 0)):
    print("line", number, flush=True)
if plan.get("helper"):
    subprocess.Popen(["sleep", "60"])
seen = {"argv": sys.argv[1:], "config": config, "environ": dict(os.environ), "pid": os.getpid(), "cwd": os.getcwd()}
(folder / "seen.part").write_text(json.dumps(seen))
(folder / "seen.part").rename(folder / "seen.json")
if not answers:
    sys.exit("the last word")
address = config["http_options"]["host"], config["http_options"]["port"]
http.server.HTTPServer(address, Handler).serve_forever()
"""
CONFIG = """
http_options: {request_timeout_s: 9}
applications:
  - name: door
    import_path: app.main:build
    deployments: [{name: Ingress, user_config: {models: {n: {pools: [one]}, m: {pools: [one, two]}}}}]
  - {name: one, route_prefix: null, import_path: "deployments.pool:build", args: {engine: transformers, model: MODEL}}
  - {name: two, route_prefix: null, import_path: "deployments.pool:build", args: {engine: transformers, model: MODEL}}
"""
DRIVER = """
import sys
from pathlib import Path
from app import runner
from app.check import check_file

_, sys.executable, config, port, runner.STOP_S = sys.argv
runner.POLL_S, runner.STOP_S, config = 0.05, float(runner.STOP_S), Path(config)
status = runner.run(
    config, check_file(config, {}), host="127.0.0.1", port=int(port), address="local",
    report=lambda line: print("report:", line, flush=True),
    ready=lambda url, names: print("ready:", url, *names, flush=True),
)
print("ended:", status, flush=True)
"""
RUNNING = {"one": "running", "two": "running"}


class FakeServe:
    """A folder with a `serve` in it, and what runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "python"  # whose folder holds `serve`; nothing runs it
        self.config = folder / "config.yaml"
        self.port = free_port()
        self.log = folder / "cache" / "logs" / f"serve-{self.port}.log"
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
        self.config.write_text(CONFIG.replace("MODEL", str(folder / "model")))
        (folder / "fake.py").write_text(FAKE_SERVE)
        (folder / "serve").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/fake.py" "$@"\n')
        (folder / "serve").chmod(0o755)
        self.reports: list[str] = []
        self.readies: list[tuple[str, list[str]]] = []
        self.drivers: list[subprocess.Popen[bytes]] = []

    def plan(self, *ready: dict[str, str] | str, **options: object) -> None:
        (self.folder / "plan.json").write_text(json.dumps({"ready": ready, **options}))

    @property
    def seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads((self.folder / "seen.json").read_text())
        return seen

    @property
    def stopped(self) -> bool:
        """Whether it ended in good order."""
        return (self.folder / "stopped").exists()

    def run(self, when_ready: Callable[[], object] = bool, address: str = "local") -> int:
        """In this process, for what ends by itself."""

        def ready(url: str, names: list[str]) -> None:
            self.readies.append((url, names))
            when_ready()

        checked = check_file(self.config, {})
        return runner.run(
            self.config, checked, host=None, port=self.port, address=address, report=self.reports.append, ready=ready
        )

    def drive(self, stop_s: float = 30, prefix: str = "", before: str = "") -> "subprocess.Popen[bytes]":
        """In a process of its own, to be sent signals. `prefix` comes before, in the shell, and `before` in Python."""
        driver = self.folder / "driver.py"
        driver.write_text(DRIVER.replace("status =", f"{before}\nstatus ="))
        command = [sys.executable, str(driver), str(self.python), str(self.config), str(self.port), str(stop_s)]
        environ = {
            **os.environ,
            "ENGINEHOUSE_CACHE": str(self.folder / "cache"),
            "http_proxy": "http://127.0.0.1:9",  # nobody: loopback is asked directly
        }
        with (self.folder / "output").open("w") as output:
            process = subprocess.Popen(
                ["sh", "-c", f'{prefix} exec "$@"', "sh", *command],
                cwd=Path(runner.__file__).parents[1],
                env=environ,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.drivers.append(process)
        return process

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.output(), f"{text!r} in the output")

    def remains(self) -> list[int]:
        """Processes of it that are left."""
        if not (self.folder / "seen.json").exists():
            return []
        pid: int = self.seen["pid"]
        return [*filter(alive, [pid]), *guard.members(pid)]

    def all_is_gone(self) -> None:
        wait_until(lambda: not self.remains(), "the end of all its processes")

    def clean(self) -> None:
        """End what a test that failed has left."""
        for process in [process for process in self.drivers if process.poll() is None]:
            process.kill()
            process.wait()
        for pid in self.remains():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServe]:
    fake = FakeServe(tmp_path)
    monkeypatch.setattr(sys, "executable", str(fake.python))
    monkeypatch.setattr(runner, "POLL_S", 0.02)
    monkeypatch.setattr(runner, "STOP_S", 10.0)
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path / "cache"))
    yield fake
    try:
        fake.all_is_gone()
    finally:
        fake.clean()


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[FakeServe]:
    """As `fake`, for what runs in a process of its own."""
    fake = FakeServe(tmp_path)
    yield fake
    try:
        fake.all_is_gone()
    finally:
        fake.clean()


# Parts


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("name.example", "http://name.example:80"),
    ],
)
def test_the_url_that_a_client_here_can_use(host: str, url: str) -> None:
    assert Where(host, 80).url == url


def test_what_pools_need_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [("transformers", "a", None), ("vllm", "a", None), ("vllm", "b", "v1"), ("vllm", "b", "v1")]
    pools += [("simulated", "a name", None)]
    applications: list[dict[str, Any]] = [
        {
            "name": f"pool{number}",
            "route_prefix": None,
            "import_path": "deployments.pool:build",
            "args": {"engine": engine, "model": model, "revision": revision},
        }
        for number, (engine, model, revision) in enumerate(pools)
    ]
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"applications": applications}))
    installed: list[str] = []
    resolved: list[tuple[str, str | None]] = []
    monkeypatch.setattr(environment_build, "install", lambda engine, report: installed.append(engine))
    (tmp_path / "config.json").write_text("{}")

    def resolve(model: str, revision: str | None, _: object) -> Path:
        resolved.append((model, revision))
        return tmp_path

    monkeypatch.setattr(models, "resolve", resolve)
    runner.prepare(check_file(config, {}), print)
    assert installed == ["vllm"]
    assert set(resolved) == {("a", None), ("b", "v1")}
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    with pytest.raises(RunError, match="^Pool pool0: The transformers engine runs no quantized checkpoints"):
        runner.prepare(check_file(config, {}), print)


# A whole run that ends by itself


def test_serve_run_gets_the_config_and_the_address(fake: FakeServe) -> None:
    fake.plan()
    with pytest.raises(RunError):
        fake.run()
    given = fake.config.read_text()
    expected = yaml.safe_load(given)
    expected["http_options"] = {"request_timeout_s": 9, "host": "127.0.0.1", "port": fake.port}
    assert fake.seen["config"] == expected
    config = fake.seen["argv"][-1]
    assert fake.seen["argv"] == ["run", "--address", "local", "--app-dir", os.getcwd(), config]
    assert fake.seen["environ"]["PATH"].split(os.pathsep)[0] == str(fake.folder)
    assert not Path(config).exists()


def test_only_a_ray_of_its_own_keeps_to_loopback(fake: FakeServe, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    monkeypatch.delenv(variable, raising=False)
    fake.plan()
    for address, value in (("local", "0"), ("ray://there", None)):
        with pytest.raises(RunError):
            fake.run(address=address)
        assert (fake.seen["argv"][2], fake.seen["environ"].get(variable)) == (address, value)


def test_serve_that_ends_before_any_pool_is_up(fake: FakeServe) -> None:
    fake.plan(lines=30)
    with pytest.raises(RunError) as raised:
        fake.run()
    assert str(raised.value).splitlines() == [
        "Ray Serve ended by itself with status 1.",
        "The log's last lines:",
        *(f"    line {number}" for number in range(6, 30)),
        "    the last word",
        f"The whole of it: {fake.log}",
    ]
    assert fake.reports == [f"starting Ray Serve; its log: {fake.log}"]
    assert fake.readies == []


def test_serve_that_ends_later(fake: FakeServe) -> None:
    fake.plan(RUNNING, "exit")
    with pytest.raises(RunError, match=r"^Ray Serve ended by itself with status 3\.\n.*\n    the last word\n"):
        # Nobody asks /ready any more, so that it is asked here.
        fake.run(when_ready=lambda: runner.pool_states(Where("127.0.0.1", fake.port)))
    assert fake.readies == [(f"http://127.0.0.1:{fake.port}", ["m", "n"])]


def test_no_pool_came_up(fake: FakeServe) -> None:
    fake.plan({"one": "deploying", "two": "deploy_failed"}, {"one": "unhealthy", "two": "deploy_failed"}, lines=1)
    with pytest.raises(RunError) as raised:
        fake.run()
    assert str(raised.value) == f"No pool came up. Serve's whole log: {fake.log}"
    assert fake.readies == []
    assert fake.stopped


def test_a_port_that_is_taken(fake: FakeServe) -> None:
    fake.plan()
    with socket.create_server(("127.0.0.1", fake.port)), pytest.raises(RunError) as raised:
        fake.run()
    reason = "Address already in use. Choose another with --port."
    assert str(raised.value) == f"Cannot listen on 127.0.0.1:{fake.port}: {reason}"
    assert fake.reports == []
    assert not (fake.folder / "seen.json").exists()


def test_a_port_that_was_left_just_now_is_free(fake: FakeServe) -> None:
    with socket.create_server(("127.0.0.1", fake.port)) as server:
        client = socket.create_connection(("127.0.0.1", fake.port))
        server.accept()[0].close()  # first, so that the wait for late packets is this side's
        client.close()
    fake.plan()
    with pytest.raises(RunError, match=r"^Ray Serve ended by itself"):
        fake.run()


# A whole run that is told to stop


def test_progress_is_shown_until_the_pools_are_up(driven: FakeServe) -> None:
    driven.plan(
        "Path '/ready' not found.",  # of Serve itself
        {"one": "deploying", "two": "not deployed"},
        {"one": "deploying", "two": "deploy_failed"},
        {"one": "deploying", "two": "deploy_failed"},
        {"one": "running", "two": "deploy_failed"},
        lines=1,
    )
    driver = driven.drive()
    driven.wait_for("ready:")
    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) == 0
    assert re.sub(r"\[ +\d+ s\]", "[N s]", driven.output()) == textwrap.dedent(
        f"""\
        report: starting Ray Serve; its log: {driven.log}
        report: [N s] pool one: deploying
        report: [N s] pool two: not deployed
        report: [N s] pool two: deploy_failed
        report: The log's last lines:
            line 0
        The whole of it: {driven.log}
        report: [N s] pool one: running
        ready: http://127.0.0.1:{driven.port} m n
        report: stopping
        ended: 0
        """
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_stops_all_of_it(driven: FakeServe, number: signal.Signals) -> None:
    driven.plan(RUNNING, helper=True)
    driver = driven.drive()
    driven.wait_for("ready:")
    assert len(driven.remains()) == 2
    driver.send_signal(number)
    assert driver.wait(60) == 0
    assert driven.stopped
    driven.all_is_gone()


def test_a_signal_while_the_pools_start(driven: FakeServe) -> None:
    driven.plan({"one": "deploying"})
    driver = driven.drive()
    driven.wait_for("pool one: deploying")
    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) == 0
    assert driven.stopped
    assert "ready:" not in driven.output()


def test_a_job_in_a_shells_background(driven: FakeServe) -> None:
    """It is born with SIGINT ignored, and `serve run` has to hear it all the same."""
    driven.plan(RUNNING)
    (driven.folder / "fake.py").write_text(
        "import os, pathlib, signal\n"
        "answer = signal.getsignal(signal.SIGINT) is signal.SIG_IGN\n"
        "pathlib.Path(__file__).with_name('ignored').write_text(str(answer))\n" + FAKE_SERVE
    )
    driver = driven.drive(prefix="trap '' INT;")
    driven.wait_for("ready:")
    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) == 0
    assert (driven.folder / "ignored").read_text() == "False"
    assert driven.stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_under_nohup_in_the_background(driven: FakeServe, number: signal.Signals) -> None:
    """It outlives its terminal, and stops as everywhere."""
    driven.plan(RUNNING, helper=True)
    driver = driven.drive(prefix="trap '' INT HUP;")
    driven.wait_for("ready:")
    driver.send_signal(signal.SIGHUP)
    driver.send_signal(number)
    assert driver.wait(60) == 0
    assert driven.output().endswith("report: stopping\nended: 0\n")
    assert driven.stopped
    driven.all_is_gone()


def test_sigint_ends_what_comes_before_serve_too(driven: FakeServe) -> None:
    """Where the shell had it ignored."""
    driven.plan(RUNNING)
    waits = "runner.prepare = lambda *_: (print('preparing', flush=True), signal.pause())\n"
    driver = driven.drive(prefix="trap '' INT;", before=f"import signal\n{waits}")
    driven.wait_for("preparing")
    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) != 0
    assert "KeyboardInterrupt" in driven.output()


def test_what_does_not_stop_is_killed(driven: FakeServe) -> None:
    driven.plan(RUNNING, helper=True, deaf=True)
    driver = driven.drive(stop_s=0.3)
    driven.wait_for("ready:")
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(60) == 0
    assert not driven.stopped
    driven.all_is_gone()


def test_a_second_signal_kills_at_once(driven: FakeServe) -> None:
    driven.plan(RUNNING, helper=True, deaf=True)
    driver = driven.drive(stop_s=60)
    driven.wait_for("ready:")

    def interrupt() -> bool:
        driver.send_signal(signal.SIGINT)
        return driver.poll() is not None

    wait_until(interrupt, "the end")
    driven.all_is_gone()


def test_serve_run_ends_though_its_parent_was_killed(driven: FakeServe) -> None:
    driven.plan(RUNNING)
    driver = driven.drive()
    driven.wait_for("ready:")
    driver.kill()
    driver.wait(60)
    driven.all_is_gone()
    assert driven.stopped


def test_an_ingress_without_models_is_up_once_it_answers(driven: FakeServe) -> None:
    driven.plan("Path '/ready' not found.", {})
    driver = driven.drive()
    driven.wait_for(f"ready: http://127.0.0.1:{driven.port}")
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(60) == 0


# Why


def test_the_last_exception_of_a_log_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "ValueError: the first\n"
        "\x1b[36m(ServeController pid=1)\x1b[0m deployments.models.ModelNotFoundError: no such folder: /x\n"
        "(ServeController pid=1)   File 'x', line 1\n"
        "(ServeController pid=1) ERROR controller -- an Error: among other words\n"
    )
    assert runner.reason(log) == "deployments.models.ModelNotFoundError: no such folder: /x\n"
    log.write_text("all is well\n")
    assert runner.reason(log) == ""


# Who may use it


@pytest.mark.parametrize(
    ("access", "refused"), [({}, True), ({"anonymous": True}, False), ({"keys_file": "/no/such/keys.yaml"}, False)]
)
def test_a_host_that_was_asked_for_needs_keys_too(fake: FakeServe, access: dict[str, Any], refused: bool) -> None:
    """`enginehouse check` has only seen the config's own host."""
    config = yaml.safe_load(fake.config.read_text())
    config["applications"][0]["deployments"][0]["user_config"]["access"] = access
    fake.config.write_text(yaml.safe_dump(config))
    fake.plan()
    with pytest.raises(RunError) as raised:
        runner.run(
            fake.config,
            check_file(fake.config, {}),
            host="0.0.0.0",
            port=fake.port,
            address="local",
            report=fake.reports.append,
            ready=lambda *_: None,
        )
    assert str(raised.value).startswith("Whoever reaches '0.0.0.0' could use the models") == refused
    assert (fake.folder / "seen.json").exists() == (not refused)
