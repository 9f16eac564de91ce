"""`python -m tests.tiers`: the tests, by tiers, and what each takes of the machine."""

import signal
import sys

import click

from tests.tiers import table
from tests.tiers.parts import TIERS, chosen, rotating
from tests.tiers.running import NO_TESTS, run


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("names", nargs=-1, metavar="[TIER|PART]... [PYTEST OPTION]...", type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in the end instead of a table.")
@click.option("--list", "listing", is_flag=True, help="Print the tiers and their parts, and run none.")
@click.option("--engines", "needed", is_flag=True, help="Print the engines that need an environment, and run none.")
@click.option("--rotating", "number", type=int, help="Also the part whose turn it is at the commit of this number.")
def main(names: tuple[str, ...], as_json: bool, listing: bool, needed: bool, number: int | None) -> None:
    """Run tiers of tests, or parts of them, one after the other. Exit 1: something failed.

    What follows the first option of pytest's goes to pytest.
    """
    if listing:
        for name, tier in TIERS.items():
            print(f"{name}: {tier.summary}", *(f"    {each.name}" for each in tier.parts), sep="\n")
        return
    split = next((index for index, name in enumerate(names) if name.startswith("-")), len(names))
    names, arguments = names[:split], names[split:]
    if number is not None:
        names = (*names, rotating(number).name)
        tell(f"--- of the parts that take turns: {names[-1]}")
    try:
        parts = chosen(names or tuple(TIERS))
    except KeyError as error:
        every = ", ".join([*TIERS, *(each.name for tier in TIERS.values() for each in tier.parts)])
        raise click.UsageError(f"no tier and no part {error}; there are: {every}") from None
    if needed:
        print(*sorted({"vllm"}.union(*(part.engines for _, part in parts))))
        return
    found = []
    for of_tier, part in parts:
        found.append(run(of_tier, part, arguments, tell, sys.stderr if as_json else None))
        if not (found[-1].good or part.is_pytest):
            break  # what ruff and mypy find is mended first
    print(table.as_json(found) if as_json else table.as_text(found), flush=True)
    if not any(each.tests or each.failed or each.why for each in found) and any(part.is_pytest for _, part in parts):
        tell("No test was run.")
        sys.exit(NO_TESTS)
    sys.exit(not all(each.good for each in found))


if __name__ == "__main__":
    # As everywhere, also where a shell had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(prog_name="python -m tests.tiers")
