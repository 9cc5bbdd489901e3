"""The ports `Quotas` and `SchedulerSettings` over sacctmgr and scontrol: what is asked and sent, in which order, and
what is reported of a change that stopped half-way.

Commands and answers as text, and what settings mean for limits, are `quota_limits`; reading settings changes nothing.
slurmdbd keeps limits and notifies slurmctld, which enforces them: both are read, because one may know more than the
other. Each command of sacctmgr takes about 0.4 s, and each is one transaction: it is in as a whole, or not at all.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.scheduler import (
    AccountQuota,
    Change,
    QuotaProbe,
    QuotasHalfApplied,
    QuotasInForce,
    SettingsRead,
    TypedLimits,
    find_obstacles,
    needs_enforcement,
    needs_types,
    refuse_twice_the_same,
)
from ops_pipelines.core.sources import SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import RunCommand, run_scheduler_command
from ops_pipelines.resources.slurm.client import accounting_environment
from ops_pipelines.resources.slurm.quota_limits import (
    AssociationsAnswer,
    Limits,
    QosLimits,
    QuotaCommand,
    Trial,
    association_words,
    counted_types,
    find_weaknesses,
    followed_words,
    judge_by_settings,
    judge_by_trials,
    judge_enforcement,
    plan_commands,
    qos_words,
    read_associations,
    read_followed_limits,
    read_gpu_partitions,
    read_modified,
    read_partitions,
    read_qos_limits,
    read_settings,
    requested_gpus,
    trials,
)

# -- the port Quotas --


COMMAND_LIMIT_SECONDS = 60.0
"""For one command: the database waits for its locks."""
READ_BACK_COUNT = 3
READ_BACK_WAIT_SECONDS = 2.0
"""After a command without an answer, slurmdbd may be back soon: so often, and so far apart, it is asked what is in."""
_REFUSALS = (
    "Access/permission denied",
    "Batch job submission failed",
    "Invalid generic resource",
    "Nothing modified",
    "Unknown option",
    "no TRES",
)
"""What the clients say when all was read and nothing done (seen, 22.05)."""
_SETTINGS = ("scontrol", "show", "config")
_PARTITIONS = ("scontrol", "show", "partition", "-o")


class SlurmQuotas:
    """The port `Quotas` on a Slurm with slurmdbd."""

    def __init__(
        self,
        *,
        clock: Clock,
        slurm_conf: Path | None = None,
        qos_of: Mapping[TeamName, str] | None = None,
        run: RunCommand = run_scheduler_command,
    ) -> None:
        """`qos_of`: accounts that the site holds by a QOS of their own, and which. Without `slurm_conf`: SLURM_CONF."""
        self._qos_of = dict(qos_of or {})
        if len(set(self._qos_of.values())) < len(self._qos_of):
            raise ValueError(f"one QOS for several accounts in {self._qos_of}; give each account its own")
        self._clock = clock
        self._environment = accounting_environment(os.environ, slurm_conf=slurm_conf)
        self._run = run

    def read(self) -> QuotasInForce:
        """Return what slurmdbd keeps, and for whom slurmctld follows something else."""
        answer = self._read_associations(self._read_settings())
        unheeded = self._find_unheeded(answer.accounts)
        accounts, rejected = self._with_qos(answer)
        return QuotasInForce(accounts=accounts, read_at=self._clock.now(), unheeded=unheeded, rejected=rejected)

    def probe(self) -> QuotaProbe:
        """Read settings; where a job_submit plugin decides, submit held jobs, look at them, and cancel them."""
        settings = self._read_settings()
        partitions = read_gpu_partitions(self._ask(*_PARTITIONS), source=" ".join(_PARTITIONS))
        judged = judge_by_settings(settings)
        if judged.typed is TypedLimits.UNKNOWN:
            judged = judge_by_trials({trial: self._try(trial) for trial in trials(partitions)})
        is_enforced, enforced_because = judge_enforcement(settings)
        return QuotaProbe(
            is_enforced=is_enforced,
            enforced_because=enforced_because,
            typed_limits=judged.typed,
            typed_because=judged.because,
            counted_types=counted_types(settings),
            gpu_billing={each.name: each.billing_weight for each in partitions},
            warnings=find_weaknesses(partitions, self._read_qos(), known_qos=self._qos_of.values()),
        )

    def apply(self, changes: Sequence[Change]) -> None:
        """Make the changes, one command for each set of accounts with equal values."""
        refuse_twice_the_same(changes)
        if not changes:
            return
        settings = self._read_settings()
        self._refuse_where_nothing_holds(changes, settings)
        accounts = self._read_accounts(settings)
        obstacles = find_obstacles(changes, accounts)
        if obstacles:
            raise SourceRefused("; ".join(obstacles))
        due = [change for change in changes if change.stands_in(accounts[change.account]) != change.after]
        for command in plan_commands(due, cluster=settings["ClusterName"], qos_of=self._qos_of):
            self._carry_out(command, changes=due)

    # -- reading --

    def _read_settings(self) -> Mapping[str, str]:
        return read_settings(self._ask(*_SETTINGS), source=" ".join(_SETTINGS))

    def _read_associations(self, settings: Mapping[str, str]) -> AssociationsAnswer:
        argv = association_words(settings["ClusterName"])
        answer = read_associations(self._ask(*argv), source="sacctmgr show assoc")
        if not answer.accounts:
            raise SourceNonsense(f"{' '.join(argv)} reported no account; check the cluster's name and our rights there")
        return answer

    def _read_accounts(self, settings: Mapping[str, str]) -> Mapping[TeamName, AccountQuota]:
        return self._with_qos(self._read_associations(settings))[0]

    def _read_qos(self) -> Mapping[str, QosLimits]:
        return read_qos_limits(self._ask(*qos_words()), source="sacctmgr show qos")

    def _with_qos(self, answer: AssociationsAnswer) -> tuple[Mapping[TeamName, AccountQuota], tuple[Rejected, ...]]:
        """Return the accounts, those that are held by a QOS with its limits."""
        accounts, rejected = dict(answer.accounts), list(answer.rejected)
        limits = self._read_qos() if self._qos_of else {}
        for account, qos in self._qos_of.items():
            if account not in accounts:
                continue
            own = accounts.pop(account)
            if qos in limits:
                accounts[account] = AccountQuota(
                    account=account, parent=own.parent, limits=limits[qos].together, fairshare=own.fairshare
                )
            else:
                reason = f"there is no QOS {qos}, which is to hold {account}; add it, or name another"
                rejected.append(Rejected(source="sacctmgr show qos", position=qos, reason=reason, text=account))
        return accounts, tuple(rejected)

    def _find_unheeded(self, accounts: Mapping[TeamName, AccountQuota]) -> frozenset[TeamName]:
        followed: dict[TeamName, Limits] = {}
        for argv in followed_words(accounts):
            followed.update(read_followed_limits(self._ask(*argv)))
        if not followed:
            raise SourceNonsense("scontrol show assoc_mgr reported no account; run it by hand")
        return frozenset(name for name, quota in accounts.items() if followed.get(name) != dict(quota.limits))

    # -- changing --

    def _refuse_where_nothing_holds(self, changes: Sequence[Change], settings: Mapping[str, str]) -> None:
        is_enforced, because = judge_enforcement(settings)
        if not is_enforced and needs_enforcement(changes):
            raise SourceRefused(f"limits hold nobody here. {because}")
        typed = needs_types(changes)
        if not typed:
            return
        probe = self.probe()
        unknown = sorted({each.gpu_type for each in typed} - probe.counted_types)
        if probe.typed_limits is not TypedLimits.HELD or unknown:
            missing = f" Not counted apart: {', '.join(unknown)}." if unknown else ""
            raise SourceRefused(
                f"a limit on one type of GPU ({', '.join(map(str, typed))[:300]}) does not hold who names no type. "
                f"{probe.typed_because}.{missing} A limit on all types together can be had now"
            )

    def _carry_out(self, command: QuotaCommand, *, changes: Sequence[Change]) -> None:
        try:
            said = self._ask(*command.argv)
        except SourceRefused as exc:
            raise SourceRefused(str(self._half_applied(f"slurmdbd refused: {exc}", changes))) from exc
        except SourceError as exc:
            raise self._half_applied(str(exc), changes) from exc
        left_out = command.names - read_modified(said, entity=command.entity)
        if left_out:
            state = self._half_applied(f"sacctmgr did not say that it modified {', '.join(sorted(left_out))}", changes)
            if not set(command.changes) <= set(state.are_in):
                raise state

    def _half_applied(self, reason: str, changes: Sequence[Change]) -> QuotasHalfApplied:
        """Return which changes are in, as slurmdbd says; nothing is claimed while it does not answer."""
        accounts = self._read_back()
        if accounts is None:
            return QuotasHalfApplied(reason, are_in=(), are_not_in=(), unknown=changes)
        are_in: list[Change] = []
        are_not_in: list[Change] = []
        unknown: list[Change] = []
        for change in changes:
            quota = accounts.get(change.account)
            if quota is None:
                unknown.append(change)
            else:
                (are_in if change.stands_in(quota) == change.after else are_not_in).append(change)
        return QuotasHalfApplied(reason, are_in=are_in, are_not_in=are_not_in, unknown=unknown)

    def _read_back(self) -> Mapping[TeamName, AccountQuota] | None:
        for attempt in range(READ_BACK_COUNT):
            if attempt:
                self._clock.wait(READ_BACK_WAIT_SECONDS)
            try:
                return self._read_accounts(self._read_settings())
            except SourceError:
                continue
        return None

    # -- asking --

    def _try(self, trial: Trial) -> bool | None:
        """Submit a held job and cancel it; return whether what it asks for names a type, None if it was refused."""
        try:
            job = self._ask(*trial.argv).strip().partition(";")[0]
        except SourceRefused:
            return None
        if not job.isdecimal():
            raise SourceNonsense(f"sbatch printed {job[:80]!r}; expected the number of a job")
        try:
            return any(requested_gpus(self._ask("scontrol", "-o", "show", "job", job)).keys())
        finally:
            self._ask("scancel", job)

    def _ask(self, *argv: str) -> str:
        answer = self._run(argv, environment=self._environment, timeout_seconds=COMMAND_LIMIT_SECONDS)
        if answer.returncode == 0:
            return answer.stdout
        said = " / ".join((answer.stderr + answer.stdout).strip().splitlines())[:300]
        what = f"{' '.join(argv[:4])} ended with {answer.returncode}: {said}"
        if any(refusal in said for refusal in _REFUSALS):
            raise SourceRefused(what)
        raise SourceUnavailable(f"{what}. Check slurmdbd, slurmctld and munge")


# -- the port SchedulerSettings --


SETTINGS_LIMIT_SECONDS = 30.0
_CONFIG = ("scontrol", "show", "config")
_QOS = ("sacctmgr", "-P", "show", "qos")


class SlurmSettings:
    """The port `SchedulerSettings` on a Slurm; QOS need slurmdbd, the rest does not."""

    def __init__(
        self, *, clock: Clock, slurm_conf: Path | None = None, run: RunCommand = run_scheduler_command
    ) -> None:
        self._clock = clock
        self._environment = accounting_environment(os.environ, slurm_conf=slurm_conf)
        self._run = run

    def read(self) -> SettingsRead:
        """Return what scontrol and sacctmgr show."""
        cluster = read_settings(self._ask(*_CONFIG), source=" ".join(_CONFIG))
        partitions = read_partitions(self._ask(*_PARTITIONS), source=" ".join(_PARTITIONS))
        unread: tuple[str, ...] = ()
        qos: Mapping[str, Mapping[str, str]] = {}
        try:
            qos = read_qos(self._ask(*_QOS), source=" ".join(_QOS))
        except SourceError as exc:
            unread = (f"QOS: {exc}",)
        return SettingsRead(cluster=cluster, partitions=partitions, qos=qos, read_at=self._clock.now(), unread=unread)

    def _ask(self, *argv: str) -> str:
        answer = self._run(argv, environment=self._environment, timeout_seconds=SETTINGS_LIMIT_SECONDS)
        if answer.returncode == 0:
            return answer.stdout
        said = " / ".join((answer.stderr + answer.stdout).strip().splitlines())[:300]
        raise SourceUnavailable(
            f"{' '.join(argv)} ended with {answer.returncode}: {said}. Check slurmctld, slurmdbd and munge"
        )


def read_qos(text: str, *, source: str) -> Mapping[str, Mapping[str, str]]:
    """Return QOS -> its settings, from a table with a header. Raises SourceNonsense for a row that does not fit it."""
    lines = text.splitlines()
    header = lines[0].split("|") if lines else []
    if "Name" not in header:
        shown = lines[0][:120] if lines else "nothing"
        raise SourceNonsense(f"{source} printed {shown!r}; expected a header with Name. Run it by hand")
    found: dict[str, Mapping[str, str]] = {}
    for line in lines[1:]:
        cells = line.split("|")
        if len(cells) != len(header):
            raise SourceNonsense(f"{source}: {line[:120]!r} has {len(cells)} fields; expected {len(header)}")
        row = dict(zip(header, cells, strict=True))
        found[row.pop("Name")] = row
    return found
