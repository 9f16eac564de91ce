"""What the tests are divided into: tiers, and their parts, each a command. CI runs two tiers and one part."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A command, and what it needs of the machine."""

    name: str
    command: tuple[str, ...]  # its program is one of the environment's
    engines: tuple[str, ...] = ()  # those without whose environment it can't run
    free_gb: float = 2.0  # of memory, which it waits for

    @property
    def is_pytest(self) -> bool:
        return self.command[0] == "pytest"


@dataclass(frozen=True, slots=True)
class Tier:
    """Parts that belong together, and how long they may take on 2 cores, in seconds."""

    summary: str
    limit_s: int
    parts: tuple[Part, ...]


def pytest(name: str, *arguments: str, engines: tuple[str, ...] = (), free_gb: float = 2.0) -> Part:
    return Part(name, ("pytest", *arguments), engines, free_gb)


def conformance(name: str, *served: str, more: tuple[str, ...] = (), engines: tuple[str, ...] = ()) -> Part:
    """The suite on some engines, all on one server."""
    chosen = [f"--engine={engine}" for engine in served]
    return pytest(name, "tests/engines/test_conformance.py", *more, *chosen, engines=engines, free_gb=4)


# Much of what these tests do is to wait for processes that they start.
UNIT_PROCESSES = 2 * (os.cpu_count() or 1)

TIERS: Mapping[str, Tier] = {
    "fast": Tier(
        "ruff, mypy, and everything that starts no server",
        120,
        (
            Part("ruff", ("ruff", "check", ".")),
            Part("format", ("ruff", "format", "--check", ".")),
            Part("mypy", ("mypy",)),
            pytest("unit", f"--numprocesses={UNIT_PROCESSES}", "--dist=worksteal"),
        ),
    ),
    "live": Tier(
        "one server with simulated, Transformers and vLLM pools, and small ones: each behaviour once",
        480,
        (
            pytest(
                "live server", "tests/live", "--engine=simulated", "--engine=transformers", "--engine=vllm", free_gb=6
            ),
        ),
    ),
    "engines": Tier(
        "the conformance suite over all engines, and what only real engines show",
        900,
        (
            conformance(
                "no-model engines",
                *("simulated", "openai", "tensorrt_llm", "triton", "tgi"),
                more=("tests/engines/test_without_token_plane.py",),
            ),
            conformance("transformers", "transformers"),
            conformance("vllm", "vllm", engines=("vllm",)),
            conformance("sglang", "sglang", engines=("sglang",)),
            pytest("adapters on vllm", "tests/engines/test_lora_adapters.py", "--engine=vllm", engines=("vllm",)),
            pytest("adapters on sglang", "tests/engines/test_lora_adapters.py", "--engine=sglang", engines=("sglang",)),
            pytest("embeddings", "tests/engines/test_embeddings.py", engines=("vllm",), free_gb=4),
        ),
    ),
    "commands": Tier(
        "what operators type: servers and benchmarks from start to stop",
        300,
        (
            pytest("servers", "tests/commands/test_commands.py", "tests/commands/test_access.py", free_gb=4),
            pytest("benchmarks", "tests/commands/test_benchmarks.py", free_gb=9),  # one of them has vLLM twice
        ),
    ),
    "cluster": Tier(
        "a cluster of declared GPUs",
        360,
        (
            pytest("placement", "tests/cluster/test_placement.py"),
            pytest("example configs", "tests/cluster/test_examples.py", free_gb=6),
        ),
    ),
    "faults": Tier(
        "bad input and faults on purpose, in short forms",
        480,
        (
            pytest("bad input", "tests/fuzz"),
            pytest("faults of one server", "tests/faults/test_faults.py"),
            pytest(
                "faults of their own servers",
                "tests/faults/test_faults_alone.py",
                "tests/faults/test_overload.py",
                free_gb=4,
            ),
        ),
    ),
}
ALWAYS = ("fast", "live")  # which CI runs whatever else it runs


def chosen(names: tuple[str, ...]) -> list[tuple[str, Part]]:
    """The parts of tiers, and parts by their own names, each with its tier.

    Raises:
        KeyError: there is none of a name.
    """
    by_name = {each.name: [(tier, each)] for tier, found in TIERS.items() for each in found.parts}
    by_name |= {tier: [(tier, each) for each in found.parts] for tier, found in TIERS.items()}
    return [each for name in names for each in by_name[name]]


def rotating(number: int) -> Part:
    """The part that CI runs beside `ALWAYS` at the commit of this number: each in its turn."""
    rest = [each for name, tier in TIERS.items() if name not in ALWAYS for each in tier.parts]
    return rest[number % len(rest)]
