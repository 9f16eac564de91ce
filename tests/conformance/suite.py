"""The suite's core: a check, the register of them, and what comes of one check on one engine."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from tests.conformance.subject import Refused, Subject

Outcome = Literal["pass", "refused", "n/a", "fail"]
Run = Callable[[Subject], Awaitable[None]]

TIMEOUT_S = 120.0  # generous: machines with few cores run several engines at once

# What an engine may lack, as its capabilities say, and the field that a refusal must name then. The name of an
# endpoint is a need too: a model that lacks the endpoint is refused as `model`.
REFUSED_FIELDS = {
    "auto tools": frozenset({"tools", "tool_choice"}),
    "forced tools": frozenset({"tools", "tool_choice"}),
    "json_schema": frozenset({"response_format"}),
    "logprobs": frozenset({"logprobs"}),
    "n": frozenset({"n"}),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that holds of every engine that can do what it needs."""

    name: str
    theme: str
    summary: str
    run: Run
    needs: tuple[str, ...]
    may_refuse: tuple[str, ...]  # fields that no capability tells of: honoured, or a 400 that names one of them
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a check; why, where it is "n/a" or "fail"."""

    outcome: Outcome
    reason: str = ""


class NotApplicableError(Exception):
    """The check makes no sense for this engine; the message says why."""


CHECKS: dict[str, Check] = {}


def check(
    name: str, *, needs: Iterable[str] = (), may_refuse: Iterable[str] = (), timeout_s: float = TIMEOUT_S
) -> Callable[[Run], Run]:
    """Register a check. Its docstring's first line says what holds; its module is its theme.

    `needs` names an endpoint, `chat/completions` where it names none, and keys of `REFUSED_FIELDS`. An engine without
    one of them has to refuse the very request that the check sends.
    """

    def register(run: Run) -> Run:
        if name in CHECKS:
            raise ValueError(f"there are two checks named '{name}'")
        summary = (run.__doc__ or "").strip().partition("\n")[0]
        theme = run.__module__.rpartition(".")[2].removeprefix("check_").replace("_", " ")
        CHECKS[name] = Check(name, theme, summary, run, _with_endpoint(needs), tuple(may_refuse), timeout_s)
        return run

    return register


def _with_endpoint(needs: Iterable[str]) -> tuple[str, ...]:
    named = tuple(needs)
    return named if set(named) - REFUSED_FIELDS.keys() else ("chat/completions", *named)


async def carry_out(chosen: Check, subject: Subject) -> Result:
    """One check on one engine. Whatever goes wrong in it is a result."""
    lacking = [need for need in chosen.needs if not subject.has(need)]
    refusable = frozenset(chosen.may_refuse).union(*(REFUSED_FIELDS.get(need, {"model"}) for need in lacking))
    try:
        async with asyncio.timeout(chosen.timeout_s):
            await chosen.run(subject.allowing_refusal_of(refusable))
    except Refused:
        return Result("refused")
    except NotApplicableError as reason:
        return Result("n/a", str(reason))
    except TimeoutError:
        return Result("fail", f"not done within {chosen.timeout_s:.0f} s")
    except AssertionError as error:
        return Result("fail", str(error) or f"an assertion without a message: {error!r}")
    except Exception as error:
        return Result("fail", f"{type(error).__name__}: {error}")
    if lacking:
        return Result("fail", f"the engine doesn't say that it has {' and '.join(lacking)}, yet answered")
    return Result("pass")
