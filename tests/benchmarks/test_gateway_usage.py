"""CPU is charged to a whole tree of processes: to no other, and with what ended meanwhile."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.gateway import usage
from benchmarks.gateway.usage import ProcessTimes, Reading

# Burns CPU seconds in a way, says so, and waits to be ended.
BURN = """
import subprocess, sys, threading, time

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def in_a_thread():
    thread = threading.Thread(target=burn, args=(0.2,))
    thread.start()
    thread.join()

def in_a_child():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.2: pass"])

sys.stdin.readline()
{"self": lambda: burn(0.2), "thread": in_a_thread, "child": in_a_child}[sys.argv[1]]()
print("burnt", flush=True)
sys.stdin.readline()
"""


@contextmanager
def burner(way: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", BURN, way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "burnt\n"


@pytest.mark.parametrize("way", ["self", "thread", "child"])
def test_what_a_tree_burns_is_found(way: str) -> None:
    """Also what a thread or a process burns that is gone when it is counted."""
    with burner(way) as process:
        time.sleep(0.1)  # for the interpreter to have started
        before = usage.read(process.pid)
        go(process)
        assert 0.17 < usage.cpu_s(before, usage.read(process.pid)) < 0.4


def test_what_others_burn_is_not() -> None:
    with burner("self") as process, burner("self") as other:
        time.sleep(0.2)  # for the interpreters to have started
        before = usage.read(process.pid)
        go(other)
        assert usage.cpu_s(before, usage.read(process.pid)) < 0.05


def spent(before: dict[int, ProcessTimes], after: dict[int, ProcessTimes]) -> float:
    return usage.cpu_s(Reading(0.0, before), Reading(1.0, after))


def test_the_exact_count_stands_as_far_as_ticks_can_tell() -> None:
    before = {1: ProcessTimes({1: 1_000_000_000}, own_s=1.0, reaped_s=0.0)}
    after = {1: ProcessTimes({1: 1_250_000_000, 2: 5_000_000}, own_s=1.28, reaped_s=0.0)}
    assert spent(before, after) == pytest.approx(0.255)


def test_what_an_ended_thread_took_along_is_in_the_ticks() -> None:
    before = {1: ProcessTimes({1: 1_000_000_000, 2: 0}, own_s=1.0, reaped_s=0.0)}
    after = {1: ProcessTimes({1: 1_100_000_000}, own_s=1.5, reaped_s=0.0)}
    assert spent(before, after) == pytest.approx(0.5)


def test_an_ended_process_counts_from_where_it_was() -> None:
    before = {1: ProcessTimes({1: 0}, 0.0, 0.3), 2: ProcessTimes({2: 700_000_000}, own_s=0.7, reaped_s=0.1)}
    after = {1: ProcessTimes({1: 1_000_000}, 0.0, reaped_s=0.3 + 0.7 + 0.1 + 0.2)}
    assert spent(before, after) == pytest.approx(0.201)


def test_a_process_that_nobody_reaped_takes_nothing_off() -> None:
    before = {1: ProcessTimes({1: 0}, 0.0, 0.0), 2: ProcessTimes({2: 700_000_000}, own_s=0.7, reaped_s=0.0)}
    assert spent(before, {1: ProcessTimes({1: 50_000_000}, 0.05, 0.0)}) == pytest.approx(0.05)


def test_memory_is_that_of_the_tree() -> None:
    found = usage.memory(os.getpid())
    assert found.rss_mb > found.pss_mb > 1
    with burner("self"):
        assert usage.memory(os.getpid()).rss_mb > found.rss_mb


def test_a_tree_that_is_gone_uses_nothing() -> None:
    with burner("self") as process:
        pass
    reading = usage.read(process.pid)
    assert (dict(reading.processes), usage.memory(process.pid).rss_mb) == ({}, 0.0)
