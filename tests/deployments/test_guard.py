"""Real processes: each test starts a leader that contains itself and has descendants, and ends it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deployments import guard

FAMILY = Path(__file__).with_name("guarded_family.py")
GONE_S = 3.0


class Family:
    """A running leader, its descendants, and its guard."""

    def __init__(self, ways: list[str], process_group: int | None = None) -> None:
        command = [sys.executable, str(FAMILY), "lead", *ways]
        pipe = subprocess.PIPE
        self.leader = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, process_group=process_group)
        assert self.leader.stdout is not None
        pids = [int(self.leader.stdout.readline()) for _ in range(1 + len(ways))]
        assert pids[0] == self.leader.pid
        self.descendants = [psutil.Process(pid) for pid in pids[1:]]
        self.guards = [process for process in psutil.process_iter() if is_guard(process, self.leader.pid)]

    @property
    def others(self) -> list[psutil.Process]:
        return self.descendants + self.guards

    def kill(self) -> None:
        self.leader.kill()

    def leave(self) -> None:
        """End the leader in good order."""
        assert self.leader.stdin is not None
        self.leader.stdin.write("\n")
        self.leader.stdin.flush()

    def clean_up(self) -> None:
        for process in self.others:
            if is_alive(process):
                process.kill()
        self.leader.kill()
        self.leader.communicate()


def is_guard(process: psutil.Process, leader: int) -> bool:
    try:
        return process.cmdline()[-2:] == [guard.__file__, str(leader)]
    except psutil.Error:
        return False


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(condition: Callable[[], bool], timeout_s: float = GONE_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)  # until the next look
    return True


@pytest.fixture
def start() -> Iterator[Callable[..., Family]]:
    families: list[Family] = []

    def started(*ways: str, process_group: int | None = None) -> Family:
        families.append(Family(list(ways), process_group))
        return families[-1]

    yield started
    for family in families:
        family.clean_up()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of a leader's."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"]) as process:
        yield process
        process.kill()


WAYS = pytest.mark.parametrize("ways", [("plain", "fork"), ("fork", "plain"), ("plain", "odd-name")], ids="-".join)
ENDS = pytest.mark.parametrize("end", [Family.kill, Family.leave], ids=["killed", "left"])


@WAYS
@ENDS
def test_all_are_gone_with_their_leader(
    start: Callable[..., Family],
    bystander: subprocess.Popen[bytes],
    ways: tuple[str, ...],
    end: Callable[[Family], None],
) -> None:
    family = start(*ways)
    assert len(family.guards) == 1
    assert all(map(is_alive, family.others))
    end(family)
    assert eventually(lambda: not any(map(is_alive, family.others)))
    assert guard.members(family.leader.pid) == []
    assert bystander.poll() is None


@ENDS
def test_a_leader_that_has_a_group_already_keeps_it(
    start: Callable[..., Family], end: Callable[[Family], None]
) -> None:
    family = start("plain", "fork", process_group=0)
    assert os.getsid(family.leader.pid) == os.getsid(0)
    end(family)
    assert eventually(lambda: not any(map(is_alive, family.others)))


def test_a_member_with_a_group_of_its_own_is_gone_too(start: Callable[..., Family]) -> None:
    family = start("own-group")
    (child,) = family.descendants
    assert os.getpgid(child.pid) == child.pid
    assert eventually(lambda: guard.members(family.leader.pid) == [child.pid])
    family.kill()
    assert eventually(lambda: not any(map(is_alive, family.others)))


def test_a_leader_gets_a_session_of_its_own(start: Callable[..., Family]) -> None:
    family = start("plain")
    assert os.getsid(family.leader.pid) == family.leader.pid != os.getsid(0)


def test_nothing_is_killed_while_the_leader_lives(start: Callable[..., Family]) -> None:
    family = start("plain", "fork")
    time.sleep(0.5)  # in which the guard would act
    assert all(map(is_alive, family.others))


@WAYS
@pytest.mark.parametrize("process_group", [None, 0], ids=["session", "group"])
def test_members_are_the_descendants_alone(
    start: Callable[..., Family],
    bystander: subprocess.Popen[bytes],
    ways: tuple[str, ...],
    process_group: int | None,
) -> None:
    family = start(*ways, process_group=process_group)
    descendants = {process.pid for process in family.descendants}
    # The guard needs a moment to leave its leader's session.
    assert eventually(lambda: set(guard.members(family.leader.pid)) == descendants)


def test_a_dead_process_that_nobody_has_reaped_is_no_member(start: Callable[..., Family]) -> None:
    family = start("plain")
    (child,) = family.descendants
    assert eventually(lambda: guard.members(family.leader.pid) == [child.pid])
    child.kill()
    assert eventually(lambda: child.status() == psutil.STATUS_ZOMBIE)
    assert guard.members(family.leader.pid) == []


def test_the_guard_outlives_a_signal_to_its_leader_s_group(start: Callable[..., Family]) -> None:
    family = start("plain")
    (watching,) = family.guards
    assert eventually(lambda: os.getsid(watching.pid) == watching.pid)
    assert os.getsid(watching.pid) != os.getsid(family.leader.pid)


def test_kill_members_gives_up_on_what_can_t_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    no_such_pid = 2**22 + 1  # above the kernel's limit
    monkeypatch.setattr(guard, "members", lambda leader: [no_such_pid])
    started = time.monotonic()
    guard.kill_members(1, timeout_s=0.2)
    assert 0.2 <= time.monotonic() - started < 2
