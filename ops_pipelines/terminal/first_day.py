"""The first day: `init` writes the files from what the systems say, `doctor` says what works, what is blind, what is
dangerous, and what to do next.

Neither changes anything in a system. `init` never overwrites a file: where there is one it says what differs.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    ExitCode,
    at_the_edge,
    complain,
    open_named,
    print_answer,
)

if TYPE_CHECKING:
    from ops_pipelines.core.cluster import Cluster
    from ops_pipelines.core.policy import Mode
    from ops_pipelines.core.sources import Sample
    from ops_pipelines.report.document import Document, Keys
    from ops_pipelines.resources.config.cluster_config import ClusterConfig, NodeNameSource
    from ops_pipelines.resources.config.drafts import Draft, Learned, Pointed
    from ops_pipelines.resources.slurm.survey import SlurmSurvey

_SELECTING_LABELS = ("cluster", "slurm_cluster", "site", "datacenter")
"""By which shared stores distinguish clusters, as a rule."""


# -- init --


@at_the_edge
def init(
    directory: Annotated[Path, typer.Argument(help="Where cluster.yaml, policy.yaml and teams.yaml are to be.")],
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Prometheus, Thanos, Mimir or VictoriaMetrics with GPU metrics.")
    ] = None,
    exporters: Annotated[
        str | None, typer.Option(metavar="URL", help="Without a store: http://{node}:9400/metrics of each node.")
    ] = None,
    logs: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Files with the nodes' kernel logs. May be repeated.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A journal gathered by systemd-journal-remote.")
    ] = None,
    slurm_conf: Annotated[Path | None, typer.Option(metavar="FILE", help="Left out: found as in a shell.")] = None,
    state_directory: Annotated[
        Path | None, typer.Option("--state-directory", metavar="DIR", help="Left out: `state` in the same directory.")
    ] = None,
    bmc: Annotated[str | None, typer.Option(metavar="URL", help="Redfish of a node: https://{node}-bmc")] = None,
    bmc_user: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    bmc_password_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read at each call.")] = None,
    bmc_ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A private certificate authority.")] = None,
    ssh: Annotated[
        bool, typer.Option("--ssh", help="Try `inspect` over ssh; offer acts over it if it answers.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show all of it and write nothing.")] = False,
) -> None:
    """Write the configuration from what Slurm and the systems that are named here say, in mode observe.

    Shows what was found, what is assumed and what stays blind. Nothing is overwritten: where files are already, what
    the systems say otherwise is shown instead, and only a file that is missing is written.
    """
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.report.terminal import console, print_document
    from ops_pipelines.resources.config.drafts import NothingToDraft, Pointed
    from ops_pipelines.resources.slurm.survey import survey_slurm

    _refuse_incomplete(
        {"--prometheus or --exporters": (prometheus, exporters), "--logs or --journal": (logs, journal)},
        bmc={"--bmc": bmc, "--bmc-user": bmc_user, "--bmc-password-file": bmc_password_file},
    )
    pointed = Pointed(
        slurm_conf=_absolute(slurm_conf),
        state_directory=_absolute(state_directory),
        prometheus_url=prometheus,
        exporter_url=exporters,
        log_paths=tuple(str(Path(each).expanduser().absolute()) for each in logs or ()),
        journal_directory=_absolute(journal),
        bmc_address=bmc,
        bmc_user=bmc_user,
        bmc_password_file=_absolute(bmc_password_file),
        bmc_ca_file=_absolute(bmc_ca_file),
    )
    clock = SystemClock()
    survey = survey_slurm(slurm_conf=pointed.slurm_conf, clock=clock)
    try:
        found = look_around(survey, pointed, tries_ssh=ssh, now=clock.now())
    except NothingToDraft as problem:
        complain(str(problem))
        raise typer.Exit(ExitCode.REFUSED) from problem
    accounts = [name for name, each in survey.accounts.items() if each.parent is not None]
    changes = find_changes(found, directory, accounts=accounts)
    written = place(found.draft, directory, is_dry=dry_run)
    print_document(console(), init_document(found, survey, directory, written, changes, is_dry=dry_run))


def _refuse_incomplete(one_of: Mapping[str, tuple[object, object]], *, bmc: Mapping[str, object]) -> None:
    """End the call where a system that must be known is not named, or named twice."""
    faults = [f"{names}: name one of them" for names, given in one_of.items() if sum(map(bool, given)) != 1]
    if any(bmc.values()) and not all(bmc.values()):
        faults.append(f"{', '.join(bmc)} go together")
    for fault in faults:
        complain(fault)
    if faults:
        raise typer.Exit(ExitCode.USAGE)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What was found of a site."""

    draft: "Draft"
    config: "ClusterConfig"
    """What the drafted cluster.yaml means."""
    answers: Mapping[str, str]
    """System -> what it answered, in words."""
    blind: tuple[str, ...]
    """What does not answer or is not seen."""


def look_around(survey: "SlurmSurvey", pointed: "Pointed", *, tries_ssh: bool, now: datetime) -> Around:
    """Draft, ask every system by the draft, and draft again with what they showed. Raises NothingToDraft."""
    from ops_pipelines.resources.config.drafts import Learned, draft_files
    from ops_pipelines.terminal.config_check import ask_all, find_unseen

    state_directory = pointed.state_directory
    pointed = replace(pointed, state_directory=None)  # What is tried here leaves nothing there.
    with tempfile.TemporaryDirectory() as scratch:
        first = draft_files(survey, pointed, Learned(is_ssh_answering=tries_ssh), now=now)
        config, cluster = _open(first, Path(scratch, "first"))
        learned, pointed = _learn(config, cluster, pointed, tries_ssh=tries_ssh)
        config, cluster = _open(draft_files(survey, pointed, learned, now=now), Path(scratch, "second"))
        answers, problems = ask_all(config, cluster)
        unseen = () if "telemetry" in problems else find_unseen(cluster)
    draft = draft_files(survey, replace(pointed, state_directory=state_directory), learned, now=now)
    blind = (*(f"{system}: {problem}" for system, problem in problems.items()), *unseen, *survey.problems)
    return Around(draft=draft, config=config, answers=answers, blind=(*blind, *draft.left_out))


def _open(draft: "Draft", directory: Path) -> "tuple[ClusterConfig, Cluster]":
    """Return what the drafted files mean, with ports to the systems and a ledger of its own, which nobody keeps."""
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.policy import PolicyError
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.resources.config.teams_file import read_teams
    from ops_pipelines.wiring import assemble

    directory.mkdir()
    for name, text in draft.files.items():
        (directory / name).write_text(text, encoding="utf-8")
    try:
        config = read_cluster(directory / DEFAULT_CLUSTER_FILE)
        if config.teams_path is not None:
            read_teams(config.teams_path)
        return config, assemble(config, SystemClock())
    except (PolicyError, ValueError) as problem:
        # The files are gone by the time that anybody reads this: what is wrong is among the options.
        words = str(problem).replace(f"{directory}/", "")
        raise PolicyError(f"no files can be made of what was named; correct the option. {words}") from problem


def _learn(
    config: "ClusterConfig", cluster: "Cluster", pointed: "Pointed", *, tries_ssh: bool
) -> "tuple[Learned, Pointed]":
    from ops_pipelines.core.sources import SourceError
    from ops_pipelines.lake.telemetry import watched_metrics
    from ops_pipelines.resources.config.drafts import Learned
    from ops_pipelines.resources.prometheus import read_scrape_seconds
    from ops_pipelines.terminal.config_check import is_fleet_answering

    scrape_seconds = None
    if pointed.prometheus_url is not None:
        try:
            samples = [
                each for each in cluster.telemetry.read_samples(cluster.clock.now()) if each.metric in watched_metrics()
            ]
            jobs = {job for each in samples if (job := each.labels.get("job"))}
            scrape_seconds = read_scrape_seconds(config.telemetry, jobs=jobs)
            pointed = replace(pointed, labels=selecting_labels(samples, known=tuple(config.topology.places)))
        except SourceError:
            pass  # It is named as blind when the roll is called.
    return (
        Learned(
            scrape_seconds=scrape_seconds,
            node_name_source=_name_source(pointed.log_paths, known=tuple(config.topology.places)),
            is_ssh_answering=tries_ssh and is_fleet_answering(cluster),
        ),
        pointed,
    )


def selecting_labels(samples: "Iterable[Sample]", *, known: tuple[str, ...]) -> Mapping[str, str]:
    """Return the label that selects the known nodes where the store holds other clusters too; else nothing."""
    from ops_pipelines.lake.node_names import names_of

    names = names_of(known)
    of_ours: Counter[tuple[str, str]] = Counter()
    of_others: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        try:
            _, is_unknown = names.find(sample.labels)
        except ValueError:
            continue
        counts = of_others if is_unknown else of_ours
        counts.update((label, sample.labels[label]) for label in _SELECTING_LABELS if label in sample.labels)
    for label in _SELECTING_LABELS:
        values = {value for name, value in of_ours if name == label}
        others = {value for name, value in of_others if name == label}
        if others and len(values) == 1 and not values & others:
            return {label: values.pop()}
    return {}


def _name_source(patterns: Sequence[str], *, known: tuple[str, ...]) -> "NodeNameSource":
    """Return where the node of a log line is named: in the names of the files where most of these are nodes."""
    from ops_pipelines.lake.node_names import names_of
    from ops_pipelines.resources.config.cluster_config import NodeNameSource
    from ops_pipelines.resources.log_files import match_files

    names = names_of(known)
    stems = [Path(path).name.partition(".")[0] for path in match_files(patterns)]
    named = sum(names.settle(stem)[1] is False for stem in stems)
    return NodeNameSource.FILE_STEM if named * 2 > len(stems) else NodeNameSource.LINE


def place(draft: "Draft", directory: Path, *, is_dry: bool) -> tuple[str, ...]:
    """Write each file that is not there yet, whole or not at all; return which. Raises PolicyError where that fails.

    Others may read them, and the directories that are made for them: the services run as users of their own, and no
    secret is in them, only names of files.
    """
    from ops_pipelines.core.policy import PolicyError

    missing = [name for name in draft.files if not os.path.lexists(directory / name)]
    try:
        for made in () if is_dry else [each for each in (directory, *directory.parents) if not each.exists()][::-1]:
            made.mkdir(exist_ok=True)
            made.chmod(0o755)  # Our umask keeps what we make to ourselves.
        for name in () if is_dry else missing:
            with tempfile.NamedTemporaryFile("w", dir=directory, encoding="utf-8") as file:
                file.write(draft.files[name])
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.link(file.name, directory / name)  # Never over a file that came meanwhile.
    except OSError as problem:
        raise PolicyError(f"{directory} cannot be written to: {problem.strerror}; name another directory") from problem
    return tuple(missing)


def find_changes(found: Around, directory: Path, *, accounts: Iterable[str]) -> tuple[str, ...]:
    """Return in words what files that are there already say otherwise. Raises PolicyError if one is wrong."""
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.resources.config.drafts import CLUSTER, find_differences
    from ops_pipelines.resources.config.teams_file import read_teams

    if not (directory / CLUSTER).exists():
        return ()
    ours = read_cluster(directory / CLUSTER)
    is_stated = ours.teams_path is not None and ours.teams_path.exists()
    teams = read_teams(ours.teams_path) if is_stated and ours.teams_path is not None else None
    return tuple(find_differences(ours, found.config, teams=teams, accounts=accounts))


def init_document(
    found: Around,
    survey: "SlurmSurvey",
    directory: Path,
    written: tuple[str, ...],
    changes: tuple[str, ...],
    *,
    is_dry: bool,
) -> "Document":
    """Return what was found, assumed and not seen, what was written, and the next step."""
    from ops_pipelines.report import document as doc

    kept = [name for name in found.draft.files if name not in written]
    placed = [f"{directory / name}: {'would be written' if is_dry else 'written'}" for name in written]
    placed += [f"{directory / name}: is there already and was left as it is" for name in kept]
    accounts = sum(each.parent is not None for each in survey.accounts.values())
    topology = found.config.topology
    racks = len({each.rack for each in topology.places.values()})
    slurm = (
        f"Slurm {survey.version or 'of unknown version'}, cluster {survey.cluster_name or 'without a name'}: "
        f"{len(survey.nodes)} nodes, {len(topology.places)} with {topology.gpus_per_node} GPUs in {racks} rack(s), "
        f"{accounts} account(s)"
    )
    answered = [f"{system}: {said}" for system, said in found.answers.items() if system != "ledger"]
    next_step = f"ops-pipelines doctor --cluster {directory / DEFAULT_CLUSTER_FILE}"
    return doc.Document(
        title="First configuration",
        cluster=found.config.name,
        about="mode observe: plans and reports, never acts",
        blocks=doc.sections(
            doc.listed_under("Found", [slurm, *answered]),
            doc.listed_under("Assumed: check these first", found.draft.assumed if written else ()),
            doc.listed_under("Blind, or left out", found.blind),
            doc.listed_under("Differs from your files", changes),
            doc.listed_under("Files", placed),
            doc.Note(words=("Next: ", doc.code(next_step))),
        ),
    )


# -- doctor --


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What `doctor` says."""

    cluster: str
    mode: str
    works: tuple[str, ...]
    blind: tuple[str, ...]
    """What is not seen: a system that does not answer, nodes without metrics, a program that does not run."""
    dangerous: tuple[str, ...]
    """What could do harm, or leave harm undone, once it acts."""
    next_step: str


@at_the_edge
def doctor(ctx: typer.Context, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False) -> None:
    """Say on one page what works, what is blind, what is dangerous, and the next step.

    Asks every system and changes nothing. Ends with 3 where something is blind.
    """
    from ops_pipelines.core.entries import LedgerError

    try:
        checkup = examine(open_named(ctx, cluster_file), cluster_file)
    except LedgerError as problem:
        checkup = _examine_without_ledger(cluster_file, str(problem))
    print_answer(lambda: checkup_json(checkup), lambda: checkup_document(checkup), as_json=json)
    if checkup.blind:
        raise typer.Exit(ExitCode.NO_ANSWER)


def _examine_without_ledger(cluster_file: Path, problem: str) -> Checkup:
    """Return the state of a site whose ledger cannot be used: all else is asked as ever, with one that nobody keeps."""
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.wiring import assemble

    config = read_cluster(cluster_file)
    with tempfile.TemporaryDirectory() as scratch:
        ledger = replace(config.ledger, url=f"sqlite:///{Path(scratch, 'ledger.sqlite')}")
        other = replace(config, ledger=ledger, state_directory=Path(scratch))
        return examine(assemble(other, SystemClock()), cluster_file, ledger_problem=problem)


def examine(cluster: "Cluster", cluster_file: Path, *, ledger_problem: str = "") -> Checkup:
    """Return the state of a site. Raises PolicyError where the files cannot be used.

    `ledger_problem`: why its ledger cannot be used, and `cluster` has another.
    """
    from ops_pipelines.core.health import HealthWord, judge_health
    from ops_pipelines.core.sources import SourceError
    from ops_pipelines.remediate.oversight import vital_signs
    from ops_pipelines.remediate.timeliness import find_objections
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.terminal.config_check import (
        ask_all,
        find_all_cautions,
        find_all_gaps,
        find_unseen,
        read_stated,
    )
    from ops_pipelines.wiring import read_rules

    config = read_cluster(cluster_file)
    rules, stated = read_rules(config), read_stated(config)
    said, problems = ask_all(config, cluster)
    if ledger_problem:
        said = {system: words for system, words in said.items() if system != "ledger"}
        problems = {"ledger": ledger_problem, **problems}
    unseen = () if "telemetry" in problems else find_unseen(cluster)
    dangers = [*find_all_cautions(config, rules, stated), *(each.reason for each in find_all_gaps(config, rules))]
    with suppress(SourceError):  # It is among the problems already.
        dangers += [each.reason for each in find_objections(cluster.scheduler.read_limits(), rules.policy)]
    health = None
    if "ledger" not in problems:
        now = cluster.clock.now()
        health = judge_health(vital_signs(cluster, cluster.ledger.read_state(now), now=now))
    is_blind = health is not None and health.word is HealthWord.BLIND
    blind = (*(f"{system}: {problem}" for system, problem in problems.items()), *unseen)
    if health is not None and is_blind:
        blind = (*blind, *(f"autopilot: {each}" for each in health.reasons[:1]))
    works = [f"{system}: {words}" for system, words in said.items()]
    if health is not None and not is_blind:
        works.append(f"autopilot: {health.word.value}")
    return Checkup(
        cluster=cluster.name,
        mode=rules.policy.mode.value,
        works=tuple(works),
        blind=blind,
        dangerous=tuple(dict.fromkeys(dangers)),
        next_step=next_step(
            problems=problems, is_running=not is_blind, unseen=unseen, dangers=dangers, mode=rules.policy.mode
        ),
    )


def next_step(
    *, problems: Mapping[str, str], is_running: bool, unseen: Sequence[str], dangers: Sequence[str], mode: "Mode"
) -> str:
    """Return the one thing to do first: what else depends on it comes later."""
    from ops_pipelines.core.policy import Mode

    for system in ("scheduler", "ledger", "telemetry"):
        if system in problems:
            return f"make the {system} answer, then run this again"
    others = sorted(problems.keys() - {"machines"})
    if others:
        return f"make {', '.join(others)} answer, then run this again"
    if not is_running:
        return "start the three processes of docs/INSTALL.md, then `ops-pipelines status --wait 120`"
    if unseen:
        return "have every node's GPU exporter scraped: nodes without metrics are never repaired or returned"
    if "machines" in problems:
        return "name how machines are reached, `fleet` in cluster.yaml: docs/REMEDIATION.md"
    if mode is Mode.OBSERVE:
        return "let it observe for a week, read what it would have done (`ops-pipelines incidents`), then mode: approve"
    if dangers:
        return f"see to this before anything stronger than mode {mode.value}: {dangers[0]}"
    if mode is Mode.APPROVE:
        return (
            "when its plans have been right for some weeks: mode: auto, with `consents` for what should still be asked"
        )
    return "nothing; `ops-pipelines review` shows each week how it does"


def checkup_json(checkup: Checkup) -> "Keys":
    """Return the answer's keys, a contract."""
    from ops_pipelines.report.document import fields_of

    return fields_of(checkup, "cluster mode works blind dangerous next_step")


def checkup_document(checkup: Checkup) -> "Document":
    """Return the page."""
    from ops_pipelines.report import document as doc
    from ops_pipelines.report.document import Mood

    nothing = {"Blind": "nothing: every system answers, and every node is seen", "Dangerous": "nothing found"}
    parts = {"Works": checkup.works, "Blind": checkup.blind, "Dangerous": checkup.dangerous}
    blocks = [
        block
        for title, items in parts.items()
        for block in doc.under(
            title, doc.Items(items=[doc.clipped(each) for each in items] or [nothing.get(title, "nothing")])
        )
    ]
    word = doc.toned("blind", Mood.BAD) if checkup.blind else doc.toned("sees all", Mood.GOOD)
    return doc.Document(
        title="Check-up",
        cluster=checkup.cluster,
        about=f"mode {checkup.mode}",
        state=word,
        blocks=doc.sections(blocks, doc.under("Next", doc.Note(words=checkup.next_step))),
        command="ops-pipelines doctor",
    )
