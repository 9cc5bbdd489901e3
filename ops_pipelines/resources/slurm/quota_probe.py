"""What a Slurm's settings say of the worth of limits, and the requests that show what settings do not tell. Pure.

A limit on `gres/gpu:h100` counts only what names the type: "if a user requests a generic gpu, the type's limit will
not be enforced" (slurm.schedmd.com/resource_limits.html; seen with 22.05.8: the job ran). Only a job_submit plugin that
gives every request a type, or refuses it, closes that; what the site's script does is no setting. A script that minds
`--gres` alone lets `--gpus` pass (seen), so that each way of asking is tried. What users change later, with `scontrol
update`, is not: the script's slurm_job_modify has to mind it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.quota_limits import TypedLimits
from ops_pipelines.resources.slurm.quota_answers import GpuPartition, QosLimits

_HOLDING = frozenset({"limits", "safe", "all"})
"""`safe` and `all` mean `limits`, and all three mean `associations`."""
_WAYS_TO_ASK = (("--gres=gpu:1",), ("--gpus=1",), ("--gpus-per-node=1",), ("--gpus-per-task=1", "--ntasks=1"))
JOB_NAME = "quota-probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was found of typed limits, and by what."""

    typed: TypedLimits
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One request to submit, held from the beginning."""

    argv: tuple[str, ...]
    request: str
    """As a user would write it."""
    is_control: bool
    """It names its type: it must be taken, else the refusal of the others proves nothing."""


def judge_enforcement(settings: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether limits hold anybody, and by which setting."""
    enforced = settings.get("AccountingStorageEnforce", "")
    if not _HOLDING & set(_words(enforced)):
        return False, (
            f"AccountingStorageEnforce = {enforced or '(not shown)'}: no limit holds anybody; set "
            "AccountingStorageEnforce=associations,limits in slurm.conf and restart slurmctld"
        )
    counted = settings.get("AccountingStorageTRES", "")
    if "gres/gpu" not in _words(counted):
        return False, (
            f"AccountingStorageTRES = {counted or '(not shown)'}: GPUs are not counted; add gres/gpu to it in "
            "slurm.conf and restart slurmctld"
        )
    return True, f"AccountingStorageEnforce = {enforced}, AccountingStorageTRES = {counted}"


def counted_types(settings: Mapping[str, str]) -> frozenset[GpuType]:
    """Return the types of GPU that are counted apart."""
    prefix = "gres/gpu:"
    words = _words(settings.get("AccountingStorageTRES", ""))
    return frozenset(GpuType(word.removeprefix(prefix)) for word in words if word.startswith(prefix))


def judge_by_settings(settings: Mapping[str, str]) -> Judged:
    """Return what the settings alone tell of typed limits; UNKNOWN where a plugin may give requests their type."""
    if not counted_types(settings):
        return Judged(
            typed=TypedLimits.NOT_HELD,
            because=(
                f"AccountingStorageTRES = {settings.get('AccountingStorageTRES', '(not shown)')}: no type of GPU is "
                "counted apart; add gres/gpu:<type> for each type, and have job_submit give requests their type"
            ),
        )
    plugins = settings.get("JobSubmitPlugins", "(null)")
    if plugins in ("", "(null)", "none"):
        return Judged(
            typed=TypedLimits.NOT_HELD,
            because=(
                f"JobSubmitPlugins = {plugins}: a request that names no type is counted under gres/gpu alone; set "
                "JobSubmitPlugins=lua with a job_submit.lua that gives every request a type or refuses it"
            ),
        )
    return Judged(typed=TypedLimits.UNKNOWN, because=f"JobSubmitPlugins = {plugins}: what it does is no setting")


def trials(partitions: Iterable[GpuPartition]) -> tuple[Trial, ...]:
    """Return the requests that show whether one without a type is given one: in each partition, in each way."""
    found = []
    for partition in partitions:
        for gpu_type in sorted(partition.types)[:1]:
            control = (f"--gres=gpu:{gpu_type}:1",)
            found.append(_trial(partition, control, is_control=True))
        found += [_trial(partition, words, is_control=False) for words in _WAYS_TO_ASK]
    return tuple(found)


def judge_by_trials(settled: Mapping[Trial, bool | None]) -> Judged:
    """Return what the requests showed: trial -> whether what became of it names a type; None: it was refused."""
    plugin = "JobSubmitPlugins"
    if not settled or any(trial.is_control and result is not True for trial, result in settled.items()):
        refused = ", ".join(trial.request for trial, result in settled.items() if trial.is_control and not result)
        return Judged(
            typed=TypedLimits.UNKNOWN,
            because=(
                f"{plugin}: a held job that names its type could not be submitted ({refused or 'no GPUs anywhere'}); "
                "give the autopilot's user an account that may submit, or set limits on all types together"
            ),
        )
    passing = [trial.request for trial, result in settled.items() if result is False]
    if passing:
        return Judged(
            typed=TypedLimits.NOT_HELD,
            because=(
                f"{plugin}: {', '.join(passing)} stays without a type; have job_submit mind tres_per_node, "
                "tres_per_job and tres_per_task, and give each a type or refuse it"
            ),
        )
    return Judged(typed=TypedLimits.HELD, because=f"{plugin}: no request of {len(settled)} stayed without a type")


def find_weaknesses(
    partitions: Iterable[GpuPartition], limits_by_qos: Mapping[str, QosLimits], *, known_qos: Iterable[str]
) -> tuple[str, ...]:
    """Return what takes a limit's or a fair share's force, each with what to do; `known_qos` hold limits of ours."""
    found = [
        f"TRESBillingWeights of partition {each.name}: a GPU is billed at 0, so that fair share does not see it; set "
        f'TRESBillingWeights="CPU=1.0,Mem=0.25G,GRES/gpu=..." there'
        for each in partitions
        if each.billing_weight == 0
    ]
    ours = set(known_qos)
    for name, limits in sorted(limits_by_qos.items()):
        if limits.together and name not in ours:
            found.append(
                f"QOS {name} has GrpTRES of GPUs: for its jobs that takes the place of their account's limit; take it "
                "away, or say that this QOS holds the account"
            )
        if limits.per_account:
            found.append(f"QOS {name} has MaxTRESPA of GPUs: no account gets more in it, whatever its own limit")
    return tuple(found)


def _trial(partition: GpuPartition, words: tuple[str, ...], *, is_control: bool) -> Trial:
    argv = (
        "sbatch",
        "--parsable",
        "--hold",
        f"--partition={partition.name}",
        f"--job-name={JOB_NAME}",
        "--time=1",
        "--chdir=/",
        "--output=/dev/null",
        *words,
        "--wrap=exit",
    )
    return Trial(argv=argv, request=f"{' '.join(words)} in {partition.name}", is_control=is_control)


def _words(setting: str) -> tuple[str, ...]:
    return tuple(word.strip().lower() for word in setting.split(","))
