"""Which versions run together, and in which order firmware is installed.

Each rule looks at one case, a release on one kind of node, and yields what is wrong. Which rules are asked, and of
which nodes, is `compatibility`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from ops_pipelines.core.release import (
    Change,
    CompatibilityTables,
    Component,
    DowngradeRule,
    ExactMatch,
    FirmwareOrder,
    FloorKind,
    Means,
    NodeModel,
    Release,
    Reversibility,
    VersionFloor,
    activation_of,
)
from ops_pipelines.rollouts.versions import (
    VersionError,
    check_version,
    compare_versions,
    first_number,
    is_older,
    slurm_major,
)

# -- which versions run together --


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A release as such on one model (`before` is None), or on nodes of that model that run the same versions."""

    release: Release
    model: str
    known: NodeModel | None
    """What the catalogue says of the model; None: nothing."""
    before: Mapping[Component, str] | None
    tables: CompatibilityTables
    today: date
    controller_version: str | None
    """Which slurmctld runs; None: nobody stated."""

    @property
    def after(self) -> Mapping[Component, str]:
        """What would run; a component that nobody knows is missing."""
        new = {change.component: change.version for change in self.release.changes}
        return {**(self.before or {}), **new}

    def change_of(self, component: Component) -> Change | None:
        return next((each for each in self.release.changes if each.component is component), None)

    def moves(self, *components: Component) -> bool:
        return any(self.change_of(each) is not None for each in components)

    def current(self, component: Component) -> str | None:
        return None if self.before is None else self.before.get(component)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is wrong with one case."""

    rule: str
    said: str
    source: str
    component: Component | None = None


def judge_words(case: Case) -> Iterator[Found]:
    """Every version that moves is one, and what runs is of the same kind: firmware of one card is not for another."""
    for change in case.release.changes:
        try:
            check_version(change.component, change.version)
            if change.starts_from:
                check_version(change.component, change.starts_from)
            current = case.current(change.component)
            if current is None:
                continue
            if change.component is Component.KERNEL:
                check_version(change.component, current)  # A node may well change to a kernel of another flavor.
            else:
                compare_versions(change.component, current, change.version)
        except VersionError as problem:
            yield unreadable(problem)


def unreadable(problem: VersionError) -> Found:
    return Found(rule="version", said=str(problem), source="how versions are written (docs/RELEASES.md)")


def judge_branch(case: Case) -> Iterator[Found]:
    """A driver's branch is known and still gets updates."""
    driver = case.release.version_of(Component.DRIVER)
    if driver is None:
        return
    number = first_number(Component.DRIVER, driver)
    branch = case.tables.branches.get(number)
    if branch is None:
        known = ", ".join(f"R{each}" for each in sorted(case.tables.branches))
        said = f"driver {driver} is of branch R{number}, of which nobody knows how long it lives; known are {known}"
        yield _found("driver_branch", said, "driver_branches.csv has no such row", Component.DRIVER)
    elif branch.ends_on is None or branch.ends_on < case.today:
        when = f"on {branch.ends_on}" if branch.ends_on else "before the table was checked"
        said = f"driver {driver} is of branch R{number} ({branch.kind}), whose life ended {when}; choose a live branch"
        yield _found("driver_branch", said, branch.source, Component.DRIVER)


def judge_cuda(case: Case) -> Iterator[Found]:
    """The driver runs the CUDA of the node, by minor-version compatibility at least."""
    driver, cuda = case.after.get(Component.DRIVER), case.after.get(Component.CUDA)
    if driver is None or cuda is None or not case.moves(Component.DRIVER, Component.CUDA):
        return
    family = first_number(Component.CUDA, cuda)
    floor = next((each for each in case.tables.cuda_drivers if each.is_family and each.cuda == str(family)), None)
    if floor is None:
        said = f"CUDA {cuda} is of a family of which nobody knows the least driver"
        yield _found("cuda_driver", said, "driver_cuda.csv has no such row", Component.CUDA)
        return
    branch = case.tables.branches.get(first_number(Component.DRIVER, driver))
    if is_older(Component.DRIVER, driver, floor.driver):
        shipped = next(
            (each for each in case.tables.cuda_drivers if not each.is_family and each.cuda == cuda),
            None,
        )
        hint = f"; it was shipped with {shipped.driver}" if shipped else ""
        said = f"CUDA {cuda} needs driver {floor.driver} or newer, not {driver}{hint}"
        yield _found("cuda_driver", said, floor.source, Component.DRIVER)
    elif branch is not None and family > branch.max_cuda_major:
        said = f"driver {driver} runs CUDA {branch.max_cuda_major}.x at most, not {cuda}"
        yield _found("cuda_driver", said, branch.source, Component.DRIVER)


def judge_exact(case: Case) -> Iterator[Found]:
    """What must equal the driver does, to the last digit, and moves together with it."""
    for match in case.tables.exact_matches:
        if not case.moves(match.component, match.equals):
            continue
        name, equals = match.component.value, match.equals.value
        ours, theirs = case.after.get(match.component), case.after.get(match.equals)
        if ours is not None and theirs is not None and ours != theirs:
            said = f"{name} would be {ours} beside {equals} {theirs}; it must be the same, to the last digit"
            yield _found("exact_match", said, match.source, match.component)
        if case.known is not None and match.where in case.known.traits:
            yield from _together(case, match)


def _together(case: Case, match: ExactMatch) -> Iterator[Found]:
    one, other = case.change_of(match.component), case.change_of(match.equals)
    name, equals = match.component.value, match.equals.value
    if other is not None and one is None:
        said = f"{equals} moves on {case.model} without {name}, which must equal it; add {name}, in the same bundle"
        yield _found("exact_match", said, match.source, match.component)
    elif one is not None and other is not None and (one.bundle != other.bundle or not one.bundle):
        said = f"{name} and {equals} are installed apart on {case.model}; give both the same bundle"
        yield _found("exact_match", said, match.source, match.component)


def judge_floors(case: Case) -> Iterator[Found]:
    """Nothing stays below what is needed beside it, and nothing jumps from too far below."""
    for floor in case.tables.floors:
        version = case.after.get(floor.component)
        if version is None or (floor.models and case.model not in floor.models) or not _speaks_of(floor, version):
            continue
        if floor.kind is FloorKind.NEEDS and case.moves(floor.component, floor.needs):
            needed = case.after.get(floor.needs)
            if needed is not None and is_older(floor.needs, needed, floor.floor):
                what = f"{_beside(floor, version, case.model)} needs {floor.needs.value} {floor.floor}"
                said = f"{what} or newer, not {needed}"
                yield _found("version_floor", said, floor.source, floor.needs)
        elif floor.kind is FloorKind.STARTS_FROM and case.moves(floor.component):
            current = case.current(floor.component)
            if current is not None and is_older(floor.component, current, floor.floor):
                said = _step_said(floor.component, version, floor.floor, current)
                yield _found("starts_from", said, floor.source, floor.component)


def _speaks_of(floor: VersionFloor, version: str) -> bool:
    if not floor.from_version:
        return True
    try:
        return not is_older(floor.component, version, floor.from_version)
    except VersionError:
        return False  # Of another line: a row of one network card says nothing of another.


def _beside(floor: VersionFloor, version: str, model: str) -> str:
    if floor.component is floor.needs:
        return model if floor.models else floor.component.value
    return f"{floor.component.value} {version}"


def judge_starts_from(case: Case) -> Iterator[Found]:
    """Each change starts from a version that it can start from, by its own word."""
    if case.before is None:
        return
    for change in case.release.changes:
        if not change.starts_from:
            continue
        current = case.current(change.component)
        source = f"starts_from of {change.component.value} in release {case.release.name}"
        if current is None:
            said = f"nobody knows which {change.component.value} runs; it must be {change.starts_from} or newer"
            yield _found("starts_from", said, source, change.component)
        elif current != change.version and is_older(change.component, current, change.starts_from):
            said = _step_said(change.component, change.version, change.starts_from, current)
            yield _found("starts_from", said, source, change.component)


def _step_said(component: Component, version: str, floor: str, current: str) -> str:
    return f"{component.value} {version} is reached from {floor} or newer, not from {current}; go there in steps"


def judge_slurm(case: Case) -> Iterator[Found]:
    """slurmd is never newer than slurmctld, and moves within the window of its release."""
    version = case.release.version_of(Component.SLURM)
    if version is None:
        return
    major, upgrades = slurm_major(version), case.tables.slurm
    row = upgrades.get(major)
    if row is None:
        said = f"slurm {version} is a major release that nobody knows; known are {', '.join(sorted(upgrades))}"
        yield _found("slurm_window", said, "slurm_upgrades.csv has no such row", Component.SLURM)
        return
    yield from _beside_controller(case, version)
    current = case.current(Component.SLURM)
    if current is not None and slurm_major(current) < major and slurm_major(current) not in row.from_majors:
        windows = ", ".join(sorted(row.from_majors))
        said = f"slurm {version} upgrades from {windows}, not from {current}; go there in steps"
        yield _found("slurm_window", said, row.source, Component.SLURM)


def _beside_controller(case: Case, version: str) -> Iterator[Found]:
    major = slurm_major(version)
    if case.controller_version is None:
        said = "nobody stated which slurmctld runs; slurmdbd moves first, then slurmctld, then slurmd"
        yield _found("slurm_order", said, case.tables.slurm[major].source, Component.SLURM)
        return
    controller = slurm_major(case.controller_version)
    row = case.tables.slurm.get(controller)
    if controller < major:
        said = f"slurm {version} is newer than slurmctld {case.controller_version}; move slurmdbd and slurmctld first"
        yield _found("slurm_order", said, case.tables.slurm[major].source, Component.SLURM)
    elif row is None or (controller != major and major not in row.from_majors):
        said = f"slurmctld {case.controller_version} is not known to talk to slurm {version}"
        yield _found("slurm_window", said, row.source if row else case.tables.slurm[major].source, Component.SLURM)


def _found(rule: str, said: str, source: str, component: Component) -> Found:
    return Found(rule=rule, said=said, source=source, component=component)


# -- in which order firmware is installed, what makes it run --


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
    """Nothing goes down that cannot, on the way there or while it rolls back."""
    for change in case.release.changes:
        rule = case.tables.downgrades.get(change.component)
        if rule is None:
            continue
        if rule.is_of_majors:
            yield from _between_majors(case, change, rule)
            continue
        if _is_less_than_claimed(change, rule):
            said = (
                f"{change.component.value} rolls back {_how(rule)}, and the release says {change.reversibility.value}"
            )
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
        said = (
            f"{change.component.value} rolls back from {change.version} to {current} {_how(rule)}; say reversible: no"
        )
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
    """Where the rollback installs a file, the release has one for the version that runs."""
    for change in case.release.changes:
        current = case.current(change.component)
        if change.reversibility is Reversibility.NO or current is None or current == change.version:
            continue
        needs_file = change.means is Means.REDFISH or any("{artifact}" in word for word in change.rollback)
        if needs_file and current not in change.rollback_artifacts:
            said = f"{change.component.value} {current} runs, and rollback_artifacts has no file for it"
            source = f"rollback_artifacts of {change.component.value} in release {case.release.name}"
            yield Found(rule="way_back", said=said, source=source, component=change.component)
