"""In which order firmware is installed, what makes it run, and whether a component gets back to an older version.

Each rule looks at one case and yields what is wrong, as in `version_rules`.
"""

from collections.abc import Iterator, Sequence

from ops_pipelines.core.release import (
    Change,
    Component,
    DowngradeRule,
    FirmwareOrder,
    Means,
    Reversibility,
    activation_of,
)
from ops_pipelines.domain.lifecycle.versions.comparing import is_older, slurm_major
from ops_pipelines.domain.lifecycle.versions.version_rules import Case, Found


def judge_order(case: Case) -> Iterator[Found]:
    """Firmware is installed in the order that was chosen for the model; where sources disagree, all are named."""
    installed = [change.component for step in case.release.steps for change in step]
    chosen = _order_of(case.model, case.tables.orders)
    wrong = None if chosen is None else _first_wrong(installed, chosen)
    if chosen is None or wrong is None:
        return
    agreeing = [
        each.source
        for each in case.tables.orders
        if not each.is_chosen
        and (case.model in each.models or each.models == chosen.models)
        and _first_wrong(installed, each) is None
    ]
    other = f"; this order is that of {' and of '.join(agreeing)}, which was not chosen" if agreeing else ""
    said = (
        f"{wrong[0].value} is installed before {wrong[1].value} on {case.model}; "
        f"the order chosen is {_words(chosen)}{other}"
    )
    yield Found(rule="firmware_order", said=said, source=chosen.source, component=wrong[0])


def _order_of(model: str, orders: Sequence[FirmwareOrder]) -> FirmwareOrder | None:
    chosen = [each for each in orders if each.is_chosen]
    own = next((each for each in chosen if model in each.models), None)
    return own or next((each for each in chosen if not each.models), None)


def _first_wrong(installed: Sequence[Component], order: FirmwareOrder) -> tuple[Component, Component] | None:
    """Return the first two components that stand the wrong way round, of those that the order names; None: none do."""
    stages = {component: number for number, stage in enumerate(order.stages) for component in stage}
    named = [each for each in installed if each in stages]
    for place, later in enumerate(named):
        for earlier in named[:place]:
            if stages[earlier] > stages[later]:
                return earlier, later
    return None


def _words(order: FirmwareOrder) -> str:
    return ", then ".join(" and ".join(sorted(each.value for each in stage)) for stage in order.stages)


def judge_activation(case: Case) -> Iterator[Found]:
    """A step is activated by what its components need at least: what was only staged does not run."""
    for step in case.release.steps:
        activation = activation_of(step)
        for change in step:
            least = case.tables.activations.get(change.component)
            if least is not None and activation.rank < least.activation.rank:
                said = (
                    f"{change.component.value} runs after {least.activation.value} at the least, "
                    f"not after {activation.value}"
                )
                yield Found(rule="activation", said=said, source=least.source, component=change.component)


def judge_downgrade(case: Case) -> Iterator[Found]:
    """Nothing goes down that cannot, on the way there or on the way back."""
    for change in case.release.changes:
        rule = case.tables.downgrades.get(change.component)
        if rule is None:
            continue
        if rule.is_of_majors:
            yield from _between_majors(case, change, rule)
            continue
        if _is_less_than_claimed(change, rule):
            said = f"{change.component.value} goes back {_how(rule)}, and the release says {change.reversibility.value}"
            yield Found(rule="way_back", said=said, source=rule.source, component=change.component)
        current = case.current(change.component)
        if rule.reversibility is Reversibility.NO and current and is_older(change.component, change.version, current):
            yield _cannot_go_down(change, current, rule)


def _between_majors(case: Case, change: Change, rule: DowngradeRule) -> Iterator[Found]:
    current = case.current(change.component)
    if current is None or slurm_major(current) == slurm_major(change.version):
        return
    if is_older(change.component, change.version, current):
        yield _cannot_go_down(change, current, rule)
    elif _is_less_than_claimed(change, rule):
        said = f"{change.component.value} goes back from {change.version} to {current} {_how(rule)}; say reversible: no"
        yield Found(rule="way_back", said=said, source=rule.source, component=change.component)


def _is_less_than_claimed(change: Change, rule: DowngradeRule) -> bool:
    if rule.reversibility is Reversibility.NO:
        return change.reversibility is not Reversibility.NO
    return change.reversibility is Reversibility.YES


def _cannot_go_down(change: Change, current: str, rule: DowngradeRule) -> Found:
    said = f"{change.component.value} goes down from {current} to {change.version} {_how(rule)}"
    return Found(rule="downgrade", said=said, source=rule.source, component=change.component)


def _how(rule: DowngradeRule) -> str:
    return f"never ({rule.said})" if rule.reversibility is Reversibility.NO else f"with conditions only ({rule.said})"


def judge_images(case: Case) -> Iterator[Found]:
    """Where the way back installs a file, the release has one for the version that runs."""
    for change in case.release.changes:
        current = case.current(change.component)
        if change.reversibility is Reversibility.NO or current is None or current == change.version:
            continue
        needs_file = change.means is Means.REDFISH or any("{artifact}" in word for word in change.rollback)
        if needs_file and current not in change.rollback_artifacts:
            said = f"{change.component.value} {current} runs, and rollback_artifacts has no file for it"
            source = f"rollback_artifacts of {change.component.value} in release {case.release.name}"
            yield Found(rule="way_back", said=said, source=source, component=change.component)
