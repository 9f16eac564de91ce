"""What a process and everything below it use: CPU by the scheduler's own count, and memory."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

# The kernel tells a process's user and system time in ticks of 10 ms: a difference of two is off by less than this.
TICKS_OFF_S = 0.03


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """A process's CPU since it began."""

    threads: Mapping[int, int]  # nanoseconds of each thread that lives
    own_s: float  # of all its threads, also those that have ended; in ticks
    reaped_s: float  # of its children that have ended, and theirs; in ticks

    @property
    def total_s(self) -> float:
        return self.own_s + self.reaped_s


@dataclass(frozen=True, slots=True)
class Reading:
    """A tree at one moment, by process id."""

    at_s: float  # on `time.monotonic`
    processes: Mapping[int, ProcessTimes]


@dataclass(frozen=True, slots=True)
class Memory:
    """A tree's memory. In `rss_mb` what processes share counts once for each of them, in `pss_mb` once."""

    rss_mb: float
    pss_mb: float


def read(pid: int) -> Reading:
    found = {}
    for process in _tree(pid):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it ended while we looked
        own_s, reaped_s = times.user + times.system, times.children_user + times.children_system
        found[process.pid] = ProcessTimes(_threads(process.pid), own_s, reaped_s)
    return Reading(time.monotonic(), found)


def cpu_s(before: Reading, after: Reading) -> float:
    """CPU seconds between two readings of a tree: exact, but for what has ended meanwhile.

    A thread takes its exact count along when it ends, and a process its too; the ticks keep them.
    """
    new = ProcessTimes({}, 0.0, 0.0)
    pairs = [(before.processes.get(pid, new), times) for pid, times in after.processes.items()]
    # What a process had before it ended is now in what its parent has reaped.
    ended_s = sum(times.total_s for pid, times in before.processes.items() if pid not in after.processes)
    reaped_s = sum(now.reaped_s - then.reaped_s for then, now in pairs) - ended_s
    return sum(_own_s(then, now) for then, now in pairs) + max(0.0, reaped_s)


def memory(pid: int) -> Memory:
    rss = pss = 0
    for process in _tree(pid):
        try:
            info = process.memory_full_info()
        except psutil.Error:
            continue
        rss += info.rss
        pss += info.pss
    return Memory(rss / 1e6, pss / 1e6)


def _own_s(then: ProcessTimes, now: ProcessTimes) -> float:
    exact_s = sum(ns - then.threads.get(thread, 0) for thread, ns in now.threads.items()) / 1e9
    coarse_s = now.own_s - then.own_s
    return coarse_s if coarse_s - exact_s > TICKS_OFF_S else exact_s


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _threads(pid: int) -> dict[int, int]:
    found = {}
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            found[int(file.parent.name)] = int(file.read_text().split()[0])
        except OSError:
            continue  # it ended while we looked
    return found
