import os
import re
import shutil
import signal
import site
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from select import select

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deployments import child, environment_build, environments
from deployments.environment_build import build, install
from deployments.environments import (
    ENGINES,
    Environment,
    InstallError,
    UnknownEngineError,
    describe,
    environment,
    inside,
    machine_variant,
    pin_lines,
    prune,
)

REPOSITORY = Path(__file__).parents[2]
NOT_INSTALLED = (
    "engine-python: on this node, the vllm environment is not installed; run 'enginehouse engines install vllm' here\n"
)

HAVING = "those that have one: sglang, tensorrt_llm, vllm"


def make_wheel(folder: Path, name: str, version: str, requires: str = "absent-package") -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: {requires}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


def write_locks(folder: Path, *pins: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for variant in ("cpu", "cuda"):
        (folder / f"vllm-{variant}.txt").write_text("\n".join(["# made by hand", *pins]) + "\n")
    return folder


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """pip sees two wheels made here and no index, and a build asks for no gigabytes."""
    wheels = tmp_path_factory.mktemp("wheels")
    make_wheel(wheels, "tiny_engine", "1.0")
    make_wheel(wheels, "tiny_tool", "2.5")
    make_wheel(wheels, "tiny_whole", "3.0", requires="tiny-part")
    make_wheel(wheels, "tiny_part", "4.0")
    make_wheel(wheels, "tiny_part", "4.1", requires="tiny-other")
    make_wheel(wheels, "tiny_other", "1.5", requires="tiny-other")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        patch.setattr(environment_build, "NEEDED_GB", {"cpu": 0, "cuda": 0})
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    return write_locks(tmp_path / "locks", "tiny-engine==1.0", "tiny-tool==2.5")


@pytest.fixture
def target(cache: Path, locks: Path) -> Environment:
    return environment("vllm", locks=locks)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Environment, list[str]]:
    """One environment for every test that only looks at it, and what its build reported."""
    folder = tmp_path_factory.mktemp("built")
    locks = write_locks(folder / "root" / "deployments" / "locks", "tiny-engine==1.0", "tiny-tool==2.5")
    reported: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGINEHOUSE_CACHE", str(folder / "cache"))
        target = environment("vllm", locks=locks)
        build(target, reported.append)
    return target, reported


def make_root(folder: Path, target: Environment) -> Path:
    """A copy of the launcher's own sources whose shipped locks are `target`'s."""
    (folder / "app").mkdir(parents=True)
    (folder / "app" / "__init__.py").touch()
    (folder / "neighbour.py").touch()
    shutil.copytree(target.lock.parent, folder / "deployments" / "locks")
    for name in ("__init__.py", "settings.py", "environments.py"):
        shutil.copy(REPOSITORY / "deployments" / name, folder / "deployments")
    return folder


def engine_python(root: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    start = f"import sys; sys.path.insert(0, {str(root)!r}); from deployments.environments import launch; launch()"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        cwd="/",
        env={**os.environ, "ENGINEHOUSE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def is_installed(target: Environment) -> bool:
    return target.installed  # in a function, so that the checker doesn't take one answer for all later ones


def cache_of(target: Environment) -> Path:
    return target.folder.parents[1]


def test_a_build_installs_the_lock_alone_and_marks_the_folder(built: tuple[Environment, list[str]]) -> None:
    target, reported = built
    assert target.installed
    assert target.marker.read_text() == target.digest
    packages = {path.name.partition("-")[0] for path in target.folder.glob("lib/python*/site-packages/*.dist-info")}
    assert packages - {"pip", "setuptools"} == {"tiny_engine", "tiny_tool"}
    assert reported == [
        f"building {target.folder}",
        "[1/2] tiny-engine",
        "[2/2] tiny-tool",
        f"unpacking 2 packages; the log is {target.folder}.log",
    ]
    assert "Successfully installed" in Path(f"{target.folder}.log").read_text()


def test_the_environment_has_the_python_version_that_runs_now(built: tuple[Environment, list[str]]) -> None:
    python = built[0].python
    assert subprocess.check_output([python, "-c", "import sys; print(sys.version)"], text=True).strip() == sys.version


def test_a_second_build_does_nothing(built: tuple[Environment, list[str]]) -> None:
    before = built[0].marker.stat().st_mtime_ns
    build(built[0], pytest.fail)
    assert built[0].marker.stat().st_mtime_ns == before


def test_install_builds_the_shipped_lock_of_this_machine(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Environment] = []
    monkeypatch.setattr(environment_build, "build", lambda target, report: calls.append(target))
    assert [install("vllm", pytest.fail)] == calls == [environment("vllm")]


def test_a_half_built_folder_is_built_anew(target: Environment) -> None:
    leftover = target.folder / "bin" / "leftover"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    assert not is_installed(target)
    build(target, lambda line: None)
    assert is_installed(target)
    assert not leftover.exists()


def test_what_a_lock_leaves_open_is_resolved_and_written_down(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_build, "RESOLVED_ON_INSTALL", {"vllm": ("tiny-whole",)})
    # The lock's own version of what tiny-whole asks for wins, as does that of a package which it doesn't.
    locks = write_locks(tmp_path / "locks", "tiny-part==4.0", "tiny-tool==2.5", "tiny-whole==3.0")
    target = environment("vllm", locks=locks)
    reported: list[str] = []
    build(target, reported.append)
    log = f"the log is {target.folder}.log"
    resolved = ["[1] tiny-whole", "[2] tiny-part", "[3] tiny-other", f"unpacking 3 packages; {log}"]
    assert reported[1:] == [*resolved, "[1/3] tiny-part", "[2/3] tiny-tool", f"unpacking 3 packages; {log}"]
    versions = target.versions.read_text().replace("_", "-").splitlines()
    assert versions == ["tiny-other==1.5", "tiny-part==4.0", "tiny-tool==2.5", "tiny-whole==3.0"]


def test_a_package_of_its_makers_index_is_told_with_where_it_is(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_build, "RESOLVED_ON_INSTALL", {"vllm": ("only-theirs",)})
    target = environment("vllm", locks=write_locks(tmp_path / "locks", "only-theirs==1.2"))
    with pytest.raises(InstallError, match=r"\nonly-theirs==1\.2 comes with vllm, .* in PIP_EXTRA_INDEX_URL, and run"):
        build(target, lambda line: None)
    assert not target.folder.exists()


def test_callers_at_one_time_share_a_build(target: Environment) -> None:
    reported: list[str] = []
    threads = [threading.Thread(target=build, args=(target, reported.append)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.installed
    assert reported.count(f"building {target.folder}") == 1
    assert reported.count(f"waiting for another build of {target.folder}") == 2


def test_a_missing_cpu_build_of_torch_says_where_it_is(cache: Path, tmp_path: Path) -> None:
    target = environment("vllm", locks=write_locks(tmp_path / "locks", "tiny-engine==1.0", "torch==2.13.0+cpu"))
    with pytest.raises(InstallError) as caught:
        build(target, lambda line: None)
    message = str(caught.value)
    assert message.startswith("pip could not build the vllm environment:\n  ERROR: Could not find a version")
    assert f"\nThe whole log: {target.folder}.log\n" in message
    assert "torch==2.13.0+cpu is a CPU build, which PyTorch's CPU wheel index carries." in message
    assert "PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS" in message
    assert not target.folder.exists()


def test_an_interrupted_build_leaves_no_folder(target: Environment) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("[1/2]"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(target, interrupt)
    assert not target.folder.exists()


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_an_interrupt_ends_the_process_and_its_children(handler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PATIENCE_S", 0.5)
    code = (
        f"import os, signal, time; signal.signal(signal.SIGINT, signal.{handler}); child = os.fork(); "
        "child and print(child, flush=True); time.sleep(60)"
    )
    with pytest.raises(KeyboardInterrupt), child.running([sys.executable, "-c", code]) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline())
        pipe = os.dup(process.stdout.fileno())
        raise KeyboardInterrupt
    assert process.returncode in (-signal.SIGINT, -signal.SIGKILL)
    # A pipe that nobody can write to any more reads as ended.
    with open(pipe, "rb") as output:
        assert select([output], [], [], 5)[0]
        assert output.read() == b""


def test_too_full_a_disk_is_told_before_anything_is_built(target: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_build, "NEEDED_GB", {"cpu": 10**6, "cuda": 10**6})
    free = r"[\d.]+ GB free\. Free some, or set ENGINEHOUSE_CACHE to a folder on a larger disk\."
    where = re.escape(str(target.folder.parent))
    with pytest.raises(InstallError, match=rf"^The vllm environment needs 1000000 GB of disk and {where} has {free}$"):
        build(target, pytest.fail)
    assert not target.folder.exists()


def test_a_python_without_venv_says_what_to_install(target: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, folder: Path) -> None:
        raise subprocess.CalledProcessError(1, ["ensurepip"])

    monkeypatch.setattr("venv.EnvBuilder.create", fail)
    with pytest.raises(InstallError, match="install the python3-venv package"):
        build(target, lambda line: None)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Processing /a b/torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl (from -r /l.txt (line 9))", "torch"),
        ("Processing ./ray-2.60.0-cp311-cp311-manylinux2014_x86_64.whl", "ray"),
        ("  Downloading https://a.example/x/jiter-0.19.0-cp311-cp311-linux_x86_64.whl (355 kB)", "jiter"),
        ("  Downloading py_spy-0.4.3-py2.py3-none-linux_x86_64.whl (2.7 MB)", "py_spy"),
        ("  Using cached mistral_common-1.13.1-py3-none-any.whl (5.9 MB)", "mistral_common"),
        ("  Downloading py_spy-0.4.3-py2.py3-none-linux_x86_64.whl.metadata (16 kB)", None),
        ("Collecting py-spy==0.4.3 (from -r /l.txt (line 9))", None),
    ],
)
def test_progress_counts_files_and_not_their_metadata(line: str, name: str | None) -> None:
    match = environment_build._FETCHES.match(line)
    assert (match and match[1]) == name


def test_the_folder_is_keyed_by_the_pins_and_not_by_comments(cache: Path, tmp_path: Path, target: Environment) -> None:
    assert target.folder.parent == cache / "engines"
    assert re.fullmatch(r"vllm-(cpu|cuda)-py3\.\d+-[0-9a-f]{12}", target.folder.name)
    same = write_locks(tmp_path / "same", "# another comment", "", "tiny-engine==1.0", "tiny-tool==2.5")
    other = write_locks(tmp_path / "other", "tiny-engine==1.0", "tiny-tool==2.6")
    assert environment("vllm", locks=same).folder == target.folder
    assert environment("vllm", locks=other).folder != target.folder


def test_the_folder_is_keyed_by_the_python_version(target: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version", "3.11.99 (main)")
    assert environment("vllm", locks=target.lock.parent).folder != target.folder


def test_an_environment_whose_interpreter_is_gone_is_not_installed(target: Environment, tmp_path: Path) -> None:
    target.python.parent.mkdir(parents=True)
    target.marker.write_text(target.digest)
    target.python.symlink_to(tmp_path / "gone")
    assert not is_installed(target)
    (tmp_path / "gone").touch()
    assert is_installed(target)
    target.marker.write_text("another lock")
    assert not is_installed(target)


def test_prune_removes_the_engine_s_other_environments(cache: Path) -> None:
    current = environment("vllm").folder
    stem = current.name.rpartition("-")[0]
    old, stranger = current.with_name(f"{stem}-0123456789ab"), current.with_name(f"other-{stem}-0123456789ab")
    for folder in (current, old, stranger):
        folder.mkdir(parents=True)
    current.with_name(f"{old.name}.log").touch()
    assert prune("vllm") == [old]
    assert (current.is_dir(), old.exists(), stranger.is_dir()) == (True, False, True)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("vlm", f"engine 'vlm' has no environment ({HAVING}); did you mean 'vllm'?"),
        ("word", f"engine 'word' has no environment ({HAVING})"),
        ("transformers", "the transformers engine runs in Enginehouse's own environment; it has no other"),
    ],
)
def test_an_engine_without_an_environment_is_named_with_those_that_have_one(engine: str, message: str) -> None:
    with pytest.raises(UnknownEngineError) as caught:
        environment(engine)
    assert str(caught.value) == message


def test_a_variant_that_an_engine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environments.ENGINES, "only-gpu", {"cuda": "only-gpu"})
    with pytest.raises(UnknownEngineError, match="^the only-gpu engine has no cpu environment, only cuda$"):
        environment("only-gpu", "cpu")


@pytest.mark.parametrize("present", ["/proc/driver/nvidia/version", "/dev/nvidia0", ""])
def test_a_machine_with_an_nvidia_driver_uses_cuda(present: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: path == present)
    assert machine_variant() == ("cuda" if present else "cpu")


def test_describe_lists_every_variant_and_the_built_in_engines(cache: Path) -> None:
    rows = {(row.engine, row.variant): row for row in describe()}
    built_in = [(name, "built in") for name in ("transformers", "simulated", "openai", "tgi", "triton")]
    own = [(engine, variant) for engine, variants in ENGINES.items() for variant in variants]
    assert list(rows) == [*built_in, *own]
    assert rows["simulated", "built in"].version == metadata.version("enginehouse")
    assert [row.version for row in describe()][5:] == ["0.32.0", "0.32.0", "0.5.23", "0.5.23", "1.2.1"]
    variants = ["cpu", "cuda", "cpu", "cuda", "cuda"]
    assert [row.here for row in describe()][5:] == [variant == machine_variant() for variant in variants]
    assert not rows["vllm", "cpu"].installed
    assert rows["vllm", "cpu"].path == str(environment("vllm", "cpu").folder)


def test_the_launcher_becomes_the_environment_s_python(built: tuple[Environment, list[str]], tmp_path: Path) -> None:
    target = built[0]
    root = make_root(tmp_path / "root", target)
    code = (
        "import importlib.util, os, sys, deployments.environments, app, tiny_engine, tiny_tool;"
        "print(tiny_engine.VERSION, sys.prefix, importlib.util.find_spec('pytest'), sys.argv[1:]);"
        "print(deployments.environments.__file__); sys.exit(7)"
    )
    done = engine_python(root, cache_of(target), "vllm", "-c", code, "--flag", "a b")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"1.0 {target.folder} None ['--flag', 'a b']",
        str(root / "deployments" / "environments.py"),
    ]
    assert done.returncode == 7


def test_an_installed_launcher_shows_our_packages_and_not_those_beside_them(
    built: tuple[Environment, list[str]], tmp_path: Path
) -> None:
    target = built[0]
    root = make_root(tmp_path / "site-packages", target)
    (root / "enginehouse-9.8.7.dist-info").mkdir()
    code = "import importlib.util, deployments, app; print(deployments.__file__, importlib.util.find_spec('neighbour'))"
    for _ in range(2):  # the second start finds the links of the first
        done = engine_python(root, cache_of(target), "vllm", "-c", code)
        assert done.stderr == ""
        path, spec = done.stdout.split()
        assert spec == "None"
        assert Path(path).is_relative_to(cache_of(target) / "sources")
        assert Path(path).resolve() == root / "deployments" / "__init__.py"


def test_the_launcher_says_what_to_run_where_nothing_is_installed(
    built: tuple[Environment, list[str]], tmp_path: Path
) -> None:
    root = make_root(tmp_path / "root", built[0])
    done = engine_python(root, tmp_path / "empty", "vllm", "-c", "print(1)")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", NOT_INSTALLED)


def test_the_launcher_names_an_unknown_engine(built: tuple[Environment, list[str]], tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", built[0])
    done = engine_python(root, tmp_path / "empty", "vlm")
    assert done.returncode == 1
    assert done.stderr.startswith("engine-python: engine 'vlm' has no environment")
    assert engine_python(root, tmp_path / "empty").stderr == "usage: engine-python ENGINE [PYTHON ARGUMENT]...\n"


def test_inside_an_environment_its_tools_come_first_and_leftovers_are_gone(target: Environment) -> None:
    path = os.pathsep.join(["/some/dir", *site.getsitepackages()])
    outer = {"PATH": "/usr/bin", "PYTHONPATH": path, "PYTHONHOME": "/usr", "VIRTUAL_ENV": "/venv", "KEPT": "yes"}
    assert inside(target, outer) == {
        "PATH": f"{target.folder}/bin:/usr/bin",
        "PYTHONPATH": f"/some/dir:{REPOSITORY}",
        "VIRTUAL_ENV": str(target.folder),
        "KEPT": "yes",
    }


def test_importing_the_launcher_loads_nothing_heavy() -> None:
    code = "import sys, deployments.environments; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], cwd=REPOSITORY, text=True).split())
    assert not loaded & {"filelock", "subprocess", "pydantic", "ray", "deployments.environment_build", "difflib"}


@pytest.fixture(params=[f"{engine}-{variant}" for engine, variants in ENGINES.items() for variant in variants])
def shipped(request: pytest.FixtureRequest) -> dict[str, str]:
    lines = pin_lines(environments.LOCKS / f"{request.param}.txt")
    pins = [re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[serve\])?==([A-Za-z0-9.+]+)", line) for line in lines]
    assert all(pins), "every line is an exact pin"
    found: dict[str, str] = {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}
    assert len(found) == len(lines), "no package is pinned twice"
    return found


@pytest.fixture(scope="module")
def project() -> dict[str, dict[str, list[str]]]:
    metadata: dict[str, dict[str, list[str]]] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return metadata


def test_a_shipped_lock_has_our_own_ray_and_all_that_our_packages_import(
    shipped: dict[str, str], project: dict[str, list[str]]
) -> None:
    ours = {canonicalize_name(need.name): need for need in map(Requirement, project["dependencies"])}
    assert str(ours[canonicalize_name("ray")].specifier) == f"=={shipped['ray']}"
    assert ours.keys() <= shipped.keys()


@pytest.mark.parametrize(
    ("engine", "variant", "extra"),
    [
        ("vllm", "cpu", "vllm-cpu"),
        ("vllm", "cuda", "vllm"),
        ("sglang", "cpu", "sglang"),
        ("sglang", "cuda", "sglang"),
    ],
)
def test_a_shipped_lock_is_the_extra_s(
    engine: str, variant: environments.Variant, extra: str, project: dict[str, dict[str, list[str]]]
) -> None:
    lines = pin_lines(environment(engine, variant).lock)
    for pin in project["optional-dependencies"][extra]:
        assert {pin, f"{pin}+cpu"} & set(lines)


def test_an_installed_copy_brings_its_entry_points(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata_folder = tmp_path / "enginehouse-9.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "entry_points.txt").write_text("[group]\nname = module:function\n")
    monkeypatch.setattr(environments, "__file__", str(tmp_path / "deployments" / "environments.py"))
    links = environments.source_root()
    assert {path.name for path in links.iterdir()} == {"app", "deployments", "enginehouse-9.dist-info"}
    assert (links / "enginehouse-9.dist-info" / "entry_points.txt").is_file()


def test_vllms_cpu_lock_leaves_out_what_does_not_match_its_torch() -> None:
    names = {line.partition("==")[0] for line in pin_lines(environments.LOCKS / "vllm-cpu.txt")}
    assert not names & {"torchvision", "torchaudio", "torchcodec", "triton"}
