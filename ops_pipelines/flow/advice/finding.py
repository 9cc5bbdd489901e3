"""One week's advice: evidence, rules, money, choice. Sends and keeps nothing."""

from datetime import datetime

from ops_pipelines.core.cluster import hour_of
from ops_pipelines.core.periods import Week
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.advice.advice import Advice, Withheld
from ops_pipelines.domain.advice.choosing import choose
from ops_pipelines.domain.advice.judging import judge, judge_storage
from ops_pipelines.flow.advice.evidence import OnStep, read_evidence, silent
from ops_pipelines.flow.advice.kept import said_before
from ops_pipelines.flow.advice.rates import find_rates, with_cents
from ops_pipelines.flow.advice.report import AdviceReport
from ops_pipelines.teams.desk import TeamsDesk


def find_advice(week: Week, desk: TeamsDesk, *, on_step: OnStep = silent) -> AdviceReport:
    """Return what could be done better, from the hours of the week that are over. Raises LakeError.

    Raises ValueError for a week that has not begun.
    """
    until = min(week.end, hour_of(desk.clock.now()))
    if until <= week.start:
        raise ValueError(f"{week.name} has no hour that is over; expected this week or an earlier one")
    evidence = read_evidence(desk, since=week.start, until=until, on_step=on_step)
    types = {(each.team, each.subject): each.gpu_type for each in evidence.works}
    found = [
        *judge(evidence.works, desk.advice, failures=evidence.failures),
        *judge_storage(evidence.groups or (), desk.advice, since=week.start, until=until),
    ]
    rates = find_rates(desk, at=week.start)
    advices = [
        with_cents(each, rates, types.get((each.team, each.subject), GpuType("")))
        for each in found
        if isinstance(each, Advice)
    ]
    choice = choose(advices, desk.advice, said=said_before(week, desk), week_end=week.end)
    silenced = [each for each in found if isinstance(each, Withheld)]
    return AdviceReport(
        week=week,
        chosen=choice.chosen,
        withheld=(*choice.withheld, *silenced),
        unknown=(*evidence.unknown, *_part_of_week(week, until), *_unset(desk)),
        currency=None if desk.prices is None else desk.prices.currency,
    )


def _part_of_week(week: Week, until: datetime) -> list[str]:
    return [] if until == week.end else [f"{week.name} is not over: it is looked at up to {until:%Y-%m-%d %H:%M} UTC"]


def _unset(desk: TeamsDesk) -> list[str]:
    said = []
    if not desk.advice.lesser_types:
        said.append("which GPU type would do for light work is not known: policy.yaml names no advice.lesser_types")
    if desk.prices is None:
        said.append("what it is worth in money is not known: cluster.yaml has no `prices`")
    return said
