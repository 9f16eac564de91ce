"""The cache of compiled engines: eight replicas, builds that fail, are killed, or aren't for this machine."""

import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments import tensorrt_build, tensorrt_cache
from deployments.engine import PoolModel
from deployments.guard import members
from deployments.tensorrt_build import Build, BuildArgs, BuildError, Machine
from deployments.tensorrt_cache import engine_for, folder_of
from deployments.tensorrt_check import MARKER, check
from deployments.tensorrt_llm import TensorrtLLMArgs
from tests.waiting import alive, wait_until

# What the real one does as far as it is known: refuses unknown flags, and writes a folder in steps.
TRTLLM_BUILD = f"""#!{sys.executable}
import argparse, json, os, pathlib, sys, time

parser = argparse.ArgumentParser(prog="trtllm-build", allow_abbrev=False)
parser.add_argument("--checkpoint_dir", type=pathlib.Path, required=True)
parser.add_argument("--output_dir", type=pathlib.Path, default="engine_outputs")
for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_beam_width", "max_num_tokens", "workers"):
    parser.add_argument(f"--{{name}}", type=int)
parser.add_argument("--kv_cache_type", choices=["continuous", "paged", "disabled"])
args = parser.parse_args()
plan = json.loads((pathlib.Path(__file__).parent / "plan.json").read_text())
with (pathlib.Path(__file__).parent / "calls.txt").open("a") as calls:
    print(os.getpid(), *sys.argv[1:], file=calls)
config = json.loads((args.checkpoint_dir / "config.json").read_text())
args.output_dir.mkdir(parents=True)
for rank in range(config["mapping"]["tp_size"] * config["mapping"]["pp_size"]):
    (args.output_dir / f"rank{{rank}}.engine").write_bytes(b"half")
    print(f"[TRT] building rank {{rank}}", flush=True)
    time.sleep(plan["seconds"])  # the build
    if plan["fails"]:
        sys.exit("[TRT] [E] out of memory")
    (args.output_dir / f"rank{{rank}}.engine").write_bytes(b"whole engine")
built = {{"max_seq_len": args.max_seq_len or 2048}}
document = {{"version": "1.2.1", "pretrained_config": {{**config, "architecture": "X"}}, "build_config": built}}
(args.output_dir / "config.json").write_text(json.dumps(document))
"""
MACHINE = Machine("sm_90", "10.14.1", "1.2.1")


class Builder:
    """A folder with a `trtllm-build` in it, and what it is to build."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executable = folder / "trtllm-build"
        self.executable.write_text(TRTLLM_BUILD)
        self.executable.chmod(0o755)
        self.checkpoint = folder / "checkpoint"
        self.checkpoint.mkdir()
        self.convert(1, 1)
        (self.checkpoint / "rank0.safetensors").write_bytes(b"weights")
        self.plan()

    def plan(self, seconds: float = 0.0, *, fails: bool = False) -> None:
        (self.folder / "plan.json").write_text(json.dumps({"seconds": seconds, "fails": fails}))

    def convert(self, tp_size: int, pp_size: int) -> None:
        mapping = {"tp_size": tp_size, "pp_size": pp_size}
        (self.checkpoint / "config.json").write_text(json.dumps({"dtype": "float16", "mapping": mapping}))

    def build(self, **changes: Any) -> Build:
        args = TensorrtLLMArgs.model_validate(
            {"mode": "tensorrt", "checkpoint": str(self.checkpoint), "tensor_parallel_size": 1} | changes
        )
        return tensorrt_build.build_of(PoolModel("org/m", "org/m"), args, MACHINE)

    def engine(self, build: Build | None = None, said: list[str] | None = None) -> Path:
        return engine_for(build or self.build(), (said if said is not None else []).append, self.executable)

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tensorrt_cache, "REPORT_S", 0.1)
    return Builder(tmp_path)


def ask(builder: Builder, answers: Any) -> None:
    """One replica."""
    said: list[str] = []
    try:
        folder = builder.engine(said=said)
        whole = (folder / "rank0.engine").read_bytes() == b"whole engine" and (folder / MARKER).exists()
        answers.put((str(folder), whole, said))
    except BuildError as error:
        answers.put((str(error), False, said))


def start(builder: Builder, count: int) -> tuple[list[Any], Any]:
    fork = multiprocessing.get_context("fork")
    answers: Any = fork.Queue()
    replicas = [fork.Process(target=ask, args=(builder, answers)) for _ in range(count)]
    for replica in replicas:
        replica.start()
    return replicas, answers


def test_eight_replicas_build_once_and_see_a_whole_engine(builder: Builder) -> None:
    builder.plan(seconds=0.6)
    replicas, answers = start(builder, 8)
    folder = folder_of(builder.build())
    while any(replica.is_alive() for replica in replicas):
        if folder.exists():
            assert (folder / "config.json").exists() and (folder / "rank0.engine").read_bytes() == b"whole engine"
        time.sleep(0.001)  # until the next look
    found = [answers.get(timeout=5) for _ in replicas]
    assert {(where, whole) for where, whole, _ in found} == {(str(folder), True)}
    assert len(builder.calls()) == 1
    waited = [line for _, _, said in found for line in said if line.startswith("waiting for another build")]
    assert any("building rank 0" in line for line in waited)
    assert sorted(path.name.removeprefix(folder.name) for path in folder.parent.iterdir()) == ["", ".lock", ".log"]


def test_a_second_start_finds_it(builder: Builder) -> None:
    assert builder.engine() == builder.engine()
    [call] = builder.calls()
    assert f"--checkpoint_dir={builder.checkpoint}" in call


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_builder_that_dies_half_way_leaves_nothing_and_the_next_builds(
    builder: Builder, number: signal.Signals
) -> None:
    builder.plan(seconds=30)
    [victim], _ = start(builder, 1)
    wait_until(builder.calls, "the first build")
    [[pid, *_]] = builder.calls()
    replicas, answers = start(builder, 3)
    time.sleep(0.3)  # until they wait
    builder.plan(seconds=0.1)
    os.kill(victim.pid, number)
    victim.join(20)
    found = [answers.get(timeout=30) for _ in replicas]
    assert {whole for _, whole, _ in found} == {True}
    assert len(builder.calls()) == 2
    wait_until(lambda: not alive(int(pid)), "the end of the first trtllm-build")
    assert members(int(pid)) == []


def test_a_build_that_fails_says_why_and_fails_those_that_waited(builder: Builder) -> None:
    builder.plan(seconds=0.8, fails=True)
    replicas, answers = start(builder, 3)
    found = [answers.get(timeout=20) for _ in replicas]
    assert len(builder.calls()) == 1
    for message, _, _ in found:
        assert message.startswith(
            f"trtllm-build failed with status 1 on {builder.checkpoint}:\n  [TRT] building rank 0\n"
        )
        assert "  [TRT] [E] out of memory\nThe whole log: " in message
    assert not folder_of(builder.build()).exists()
    builder.plan()
    assert builder.engine().is_dir()  # a new start tries again


def test_no_space(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_cache, "WEIGHS", 1e18)
    with pytest.raises(BuildError, match=r"GB free\. Free some, or set ENGINEHOUSE_CACHE"):
        builder.engine()
    assert builder.calls() == []


def test_what_decides_the_key(builder: Builder) -> None:
    first = builder.build()
    assert first.key == builder.build().key == builder.build(build={"workers": 4}).key
    machines = [
        Machine("sm_80", "10.14.1", "1.2.1"),
        Machine("sm_90", "10.13.0", "1.2.1"),
        Machine("sm_90", "10.14.1", "1.2.0"),
    ]
    others = [replace(first, machine=machine) for machine in machines]
    others += [builder.build(build={"max_batch_size": 8}), replace(first, revision="v2")]
    builder.convert(2, 1)
    others.append(builder.build(tensor_parallel_size=2))
    builder.convert(1, 1)
    (builder.checkpoint / "rank0.safetensors").write_bytes(b"other weights")
    others.append(builder.build())
    assert len({build.key for build in [first, *others]}) == len(others) + 1


def test_the_command_line(builder: Builder) -> None:
    args = {"max_batch_size": 8, "max_seq_len": 4096, "kv_cache_type": "paged", "workers": 2}
    builder.engine(builder.build(build=args))
    [call] = builder.calls()
    assert call[3:] == ["--max_batch_size=8", "--max_seq_len=4096", "--kv_cache_type=paged", "--workers=2"]


def test_a_checkpoint_for_other_gpus(builder: Builder) -> None:
    builder.convert(2, 1)
    with pytest.raises(
        BuildError, match=r"converted for tensor_parallel_size 2 and pipeline_parallel_size 1, the pool"
    ):
        builder.build()


@pytest.mark.parametrize("content", [None, "", "[]", '{"mapping": 3}'])
def test_a_checkpoint_that_is_none(builder: Builder, content: str | None) -> None:
    config = builder.checkpoint / "config.json"
    config.unlink() if content is None else config.write_text(content)
    with pytest.raises(BuildError, match=r"config\.json can't be read"):
        builder.build()


def changed(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refusal(folder: Path, machine: Machine = MACHINE, tp_size: int = 1) -> str:
    with pytest.raises(BuildError) as caught:
        check(folder, machine, tp_size, 1, "do this.")
    message = str(caught.value)
    start, end = f"The engine in {folder} can't run here: ", ". To rebuild it, do this."
    assert message.startswith(start) and message.endswith(end)
    return message[len(start) : -len(end)]


def test_an_engine_for_another_machine(builder: Builder) -> None:
    folder = builder.engine()
    check(folder, MACHINE, 1, 1, "")
    assert refusal(folder, replace(MACHINE, gpu_architecture="sm_80")) == (
        "it was built for the GPU architecture sm_90, and sm_80 is here"
    )
    assert refusal(folder, replace(MACHINE, tensorrt="10.1")) == "it was built with TensorRT 10.14.1, and 10.1 is here"
    assert refusal(folder, replace(MACHINE, tensorrt_llm="1.1.0")) == (
        "it was built by TensorRT-LLM 1.2.1, and 1.1.0 is here"
    )
    assert refusal(folder, tp_size=2) == (
        "it was built for tensor_parallel_size 1 and pipeline_parallel_size 1, and the pool wants 2 and 1"
    )


def test_an_engine_that_is_not_whole(builder: Builder) -> None:
    folder = builder.engine()
    (folder / "rank0.engine").unlink()
    assert refusal(folder) == "it lacks rank0.engine"
    (folder / "config.json").write_text("{")
    assert refusal(folder).startswith("it isn't whole: ")
    with pytest.raises(BuildError, match="remove .* and start again"):
        builder.engine()


def test_an_engine_that_was_built_by_hand_has_no_marker(builder: Builder) -> None:
    folder = builder.engine()
    (folder / MARKER).unlink()
    check(folder, MACHINE, 1, 1, "")
    changed(folder, "config.json", version="0.9")
    assert refusal(folder).startswith("it was built by TensorRT-LLM 0.9")


@pytest.mark.parametrize(
    ("listing", "found"), [("9.0, NVIDIA H100\n9.0, NVIDIA H200\n", "sm_90"), ("8.9, NVIDIA L4\n", "sm_89")]
)
def test_the_gpu_s_architecture(listing: str, found: str) -> None:
    assert tensorrt_build.architecture(listing) == found


@pytest.mark.parametrize(("listing", "message"), [("", "lists no GPU"), ("9.0, A\n8.0, B\n", r"differ \(8\.0, 9\.0\)")])
def test_gpus_that_will_not_do(listing: str, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        tensorrt_build.architecture(listing)


def test_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_build, "SMI", ("no-such-nvidia-smi",))
    with pytest.raises(BuildError, match="No NVIDIA GPU is seen here"):
        tensorrt_build.find_machine()


def test_a_machine_without_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_build, "SMI", ("echo", "9.0, NVIDIA H100"))
    with pytest.raises(BuildError, match="package tensorrt isn't here"):
        tensorrt_build.find_machine()


def test_where_trtllm_build_is(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(builder.folder))
    assert tensorrt_build.find_executable([]) == builder.executable
    monkeypatch.setenv("PATH", "/nowhere")
    assert tensorrt_build.find_executable([builder.folder]) == builder.executable
    with pytest.raises(BuildError, match="trtllm-build isn't on PATH"):
        tensorrt_build.find_executable([])


def test_bounds_of_the_parameters() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        BuildArgs(max_batch_size=0)
