"""Small clusters and jobs on them, for tests of placement: two racks of four nodes of eight GPUs, or of NVL racks."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.placement.standing import Absence, Away, Machine, Stay, Waiting

DAY = datetime(2026, 11, 20, tzinfo=UTC)
END = DAY + timedelta(days=1)


def at(hours: float) -> datetime:
    return DAY + timedelta(hours=hours)


def node(name: str) -> NodeName:
    return NodeName(name)


def machine(name: str, *, rack: str, leaf: str | None = None, domain: str | None = None, **values: object) -> Machine:
    place = Place(rack=rack, nvlink_domain=domain or name, leaf_switch=leaf or f"leaf-{rack}", model="hgx")
    known: dict[str, object] = {"gpu_count": 8, **values}
    return Machine(node=NodeName(name), place=place, **known)  # type: ignore[arg-type]  # values are of a test


def two_racks() -> tuple[Machine, ...]:
    return tuple(machine(f"{rack}{number}", rack=rack) for rack in "ab" for number in range(1, 5))


def nvl_racks() -> tuple[Machine, ...]:
    """Two racks, each one NVLink domain of four nodes with four GPUs."""
    return tuple(
        machine(f"{rack}{number}", rack=rack, domain=f"nvl-{rack}", gpu_count=4)
        for rack in "ab"
        for number in range(1, 5)
    )


def stay(job: str, gpus: Mapping[str, float], *, begin: float, end: float | None = None, **values: object) -> Stay:
    known: dict[str, object] = {"name": f"train-{job}", "user": "ada", "team": TeamName("vision"), "partition": "batch"}
    known |= values
    return Stay(
        job=job,
        began_at=at(begin),
        ended_at=None if end is None else at(end),
        gpus={NodeName(name): count for name, count in gpus.items()},
        **known,  # type: ignore[arg-type]  # values are of a test
    )


def away(name: str, why: Away, *, since: float, until: float | None, cause: str = "") -> Absence:
    return Absence(
        node=NodeName(name), why=why, since=at(since), until=None if until is None else at(until), cause=cause
    )


def waiting(
    job: str, *, since: float, until: float | None, gpus: float = 8, nodes: int = 1, **values: object
) -> Waiting:
    known: dict[str, object] = {"name": "train", "user": "ada", "team": TeamName("vision"), "partition": "batch"}
    known |= values
    return Waiting(
        job=job,
        gpu_count=gpus,
        node_count=nodes,
        since=at(since),
        until=None if until is None else at(until),
        **known,  # type: ignore[arg-type]  # values are of a test
    )
