"""What is installed is known exactly, and nothing that runs here runs what others wrote."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted((ROOT / "deployments" / "locks").glob("*.txt"))
SOURCES = sorted(path for folder in ("app", "deployments") for path in (ROOT / folder).rglob("*.py"))
STUBS = frozenset({"types-psutil", "types-PyYAML"})  # which the checker alone reads
# What calls may not be, but where it says so, with the reason.
FORBIDDEN = re.compile(
    r"(eval|exec|compile|__import__|(pickle|cloudpickle|dill|marshal|shelve)\..*|.*\.(loads_pickle|read_pickle)"
    r"|yaml\.(load|load_all|unsafe_load|full_load)|os\.(system|popen)|tempfile\.mktemp)"
)
ALLOWED: dict[str, str] = {}  # file and call: why


def declared() -> Iterator[Requirement]:
    project = PROJECT["project"]
    for lines in (project["dependencies"], *project["optional-dependencies"].values()):
        yield from map(Requirement, lines)


@pytest.mark.parametrize("requirement", [each for each in declared() if each.name not in STUBS], ids=str)
def test_what_is_needed_is_bounded(requirement: Requirement) -> None:
    assert requirement.url is None
    assert {each.operator for each in requirement.specifier} & {"==", "<", "~="}, "it has no upper bound"


@pytest.mark.parametrize("lock", [*LOCKS, ROOT / "constraints.txt"], ids=lambda path: path.name)
def test_a_lock_says_one_version_of_each(lock: Path) -> None:
    lines = [line.strip() for line in lock.read_text().splitlines()]
    names = []
    for line in lines:
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            assert requirement.url is None, line
            [version] = requirement.specifier
            assert version.operator == "==" and "*" not in version.version, line
            names.append(requirement.name.lower())
    assert len(names) == len(set(names)) > 50


def test_there_is_a_lock_for_each_environment() -> None:
    assert [path.stem for path in LOCKS] == [
        "sglang-cpu",
        "sglang-cuda",
        "tensorrt_llm-cuda",
        "vllm-cpu",
        "vllm-cuda",
    ]


# Code


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def faults(source: str) -> Iterator[str]:
    """What in a module would run, or load, what others wrote."""
    for name, call in calls(ast.parse(source)):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if FORBIDDEN.fullmatch(name) and not name.startswith("re."):
            yield name
        if name.endswith("torch.load") and given.get("weights_only") != "True":
            yield "torch.load without weights_only=True"
        if given.get("shell", "False") != "False":
            yield f"{name} with a shell"
        if given.get("trust_remote_code", "False") != "False":
            yield f"{name} with trust_remote_code"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_run_that_others_wrote(path: Path) -> None:
    found = {f"{path.relative_to(ROOT)}: {fault}" for fault in faults(path.read_text())}
    assert found <= ALLOWED.keys()


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)",
        "exec(x)",
        "pickle.loads(x)",
        "pickle.Unpickler(x)",
        "cloudpickle.load(x)",
        "yaml.load(x, yaml.SafeLoader)",
        "yaml.unsafe_load(x)",
        "torch.load(x)",
        "torch.load(x, weights_only=False)",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=y)",
        "os.system(x)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=args.trust)",
    ],
)
def test_what_is_looked_for_is_found(source: str) -> None:
    assert list(faults(source))


@pytest.mark.parametrize(
    "source", ["yaml.safe_load(x)", "re.compile(x)", "torch.load(x, weights_only=True)", "subprocess.run([x])"]
)
def test_what_is_harmless_is_not(source: str) -> None:
    assert not list(faults(source))
