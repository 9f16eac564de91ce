"""What is simulated: each traffic at two loads, of a pool of four replicas behind one ingress process or more."""

from dataclasses import replace

from benchmarks.replica_choice.simulate import Case
from benchmarks.replica_choice.workload import FEW, MANY, PLAIN

CASES = {
    "many prefixes, moderate": Case(MANY, rate=3.0),
    "many prefixes, high": Case(MANY, rate=4.5),
    "few prefixes, moderate": Case(FEW, rate=3.0),
    "few prefixes, high": Case(FEW, rate=5.5),
    "plain, moderate": Case(PLAIN, rate=12.0),
    "plain, high": Case(PLAIN, rate=20.0),
}


def cases(replicas: int, ingresses: int, scale: float) -> dict[str, Case]:
    """The cases for so many replicas, each with as much to do as in `CASES`; shorter by `scale`."""
    return {
        name: replace(
            case,
            rate=case.rate * replicas / case.replicas,
            replicas=replicas,
            ingresses=ingresses,
            duration_s=case.duration_s * scale,
            warm_up_s=case.warm_up_s * scale,
        )
        for name, case in CASES.items()
    }
