"""Recorded answers about limits are read; what cannot be believed is nonsense or a rejected row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.scheduler import AccountQuota, QuotaChange, TypedLimits
from ops_pipelines.core.sources import SourceNonsense
from ops_pipelines.resources.slurm.quota_limits import (
    MOST_NAMES,
    checked_name,
    checked_type,
    counted_types,
    gpu_limits,
    judge_by_settings,
    judge_enforcement,
    plan_commands,
    read_associations,
    read_followed_limits,
    read_gpu_partitions,
    read_modified,
    read_qos_limits,
    read_settings,
    requested_gpus,
)
from tests.resources.fake_slurm_quotas import (
    ASSOCIATIONS,
    PARTITIONS,
    RECORDED,
    TYPED_CONFIG,
    UNTYPED_CONFIG,
    WAITING_JOBS,
)

HEADER = ASSOCIATIONS.splitlines()[0]


def test_accounts_are_read_with_their_limits_parents_and_shares() -> None:
    accounts = read_associations(ASSOCIATIONS, source="sacctmgr").accounts

    assert accounts[TeamName("research")] == AccountQuota(
        account=TeamName("research"),
        parent=TeamName("root"),
        limits={GpuType("h100"): 8, GpuType(""): 16},
        fairshare=10,
    )
    assert (accounts[TeamName("root")].parent, accounts[TeamName("vision")].parent) == (None, "research")
    assert (accounts[TeamName("product")].limits, accounts[TeamName("vision")].limits) == ({"": 0}, {})
    assert accounts[TeamName("platform")].fairshare is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a|b|||root|1|", "7 fields"),
        ("a b|||root|1|", "no name of account"),
        ("Team|||root|1|", "no name of account"),
        ("a|||root|much|", "'much'"),
        ("a|||root|-1|", "'-1'"),
        ("a|||root|1|gres/gpu=4K", "gres/gpu=4K"),
        ("a|||root|1|gres/gpu", "'gres/gpu'"),
    ],
)
def test_a_row_that_cannot_be_believed_is_rejected_and_the_others_are_read(row: str, reason: str) -> None:
    answer = read_associations(f"{HEADER}\n{row}\nresearch|||root|1|gres/gpu=8\n", source="sacctmgr")

    assert list(answer.accounts) == ["research"]
    assert [(each.position, each.text, reason in each.reason) for each in answer.rejected] == [("line 2", row, True)]


@pytest.mark.parametrize("text", ["", "research|||root|1|", "sacctmgr: error", "Account|User|GrpTRES\n"])
def test_an_answer_without_its_header_is_nonsense(text: str) -> None:
    with pytest.raises(SourceNonsense, match="header"):
        read_associations(text, source="sacctmgr")
    with pytest.raises(SourceNonsense, match="header"):
        read_qos_limits(text, source="sacctmgr")


def test_other_resources_are_no_gpus() -> None:
    assert gpu_limits("cpu=100,gres/gpumem=5,gres/nic=2,gres/gpu:A100-SXM4=3") == {"a100-sxm4": 3}


@given(counts=st.dictionaries(st.sampled_from(["", "h100", "a100"]), st.integers(0, 2**31 - 2)))
def test_counts_survive_being_written_and_read(counts: dict[str, int]) -> None:
    text = ",".join(f"gres/gpu:{name}={count}" if name else f"gres/gpu={count}" for name, count in counts.items())

    assert gpu_limits(text) == counts


def test_what_slurmctld_follows_is_read_without_users() -> None:
    text = (RECORDED / "scontrol-assoc-mgr-22.05-limits-and-use.txt").read_text()

    assert read_followed_limits(text) == {"product": {"": 0}, "research": {"h100": 8, "": 16}, "vision": {}}


def test_sacctmgr_names_what_it_modified_and_passes_over_the_unknown() -> None:
    text = (RECORDED / "sacctmgr-modify-22.05-one-of-three-unknown.txt").read_text()

    assert read_modified(text, entity="account") == {"product", "research"}
    assert read_modified(" Modified qos...\n  team-a\n", entity="qos") == {"team-a"}


def test_partitions_tell_types_and_what_a_gpu_weighs() -> None:
    partitions = read_gpu_partitions(PARTITIONS, source="scontrol")

    assert [(each.name, each.billing_weight, set(each.types)) for each in partitions] == [
        ("batch", 0.0, {"h100"}),
        ("billed", 2.0, {"h100"}),
        ("typed", 1.5, {"h100"}),
    ]


def test_what_a_waiting_job_asks_for_is_not_taken_from_its_name() -> None:
    assert [requested_gpus(line) for line in WAITING_JOBS] == [{"": 1, "h100": 1}, {"": 1}]
    with pytest.raises(SourceNonsense):
        requested_gpus("JobId=1 JobName=x TRES=gres/gpu:h100=1 UserId=root(0)")


def test_settings_without_a_cluster_are_nonsense() -> None:
    for text in ("AccountingStorageEnforce = limits\n", "ClusterName = a,b\n", ""):
        with pytest.raises(SourceNonsense, match="ClusterName"):
            read_settings(text, source="scontrol")


def test_a_count_that_is_none_is_nonsense_wherever_rows_cannot_be_left_out() -> None:
    with pytest.raises(SourceNonsense, match="4K"):
        read_qos_limits("Name|GrpTRES|MaxTRESPA\nnormal|gres/gpu=4K|\n", source="sacctmgr")
    with pytest.raises(SourceNonsense, match="4K"):
        read_gpu_partitions("PartitionName=batch TRES=cpu=4,gres/gpu=4K\n", source="scontrol")


# -- what settings say --


@pytest.mark.parametrize(
    ("enforced", "holds"),
    [
        ("associations,limits", True),
        ("limits", True),
        ("safe", True),
        ("all", True),
        ("associations", False),
        ("associations,qos,wckeys", False),
        ("none", False),
        ("", False),
    ],
)
def test_limits_hold_only_where_they_are_enforced(enforced: str, holds: bool) -> None:
    settings = {"AccountingStorageEnforce": enforced, "AccountingStorageTRES": "cpu,gres/gpu"}

    assert judge_enforcement(settings)[0] is holds


def test_gpus_that_are_not_counted_cannot_be_limited() -> None:
    settings = {"AccountingStorageEnforce": "limits", "AccountingStorageTRES": "cpu,mem,gres/gpu:h100"}

    assert judge_enforcement(settings) == (
        False,
        "AccountingStorageTRES = cpu,mem,gres/gpu:h100: GPUs are not counted; add gres/gpu to it in slurm.conf and "
        "restart slurmctld",
    )


@pytest.mark.parametrize(
    ("config", "expected", "setting"),
    [
        (UNTYPED_CONFIG, TypedLimits.NOT_HELD, "AccountingStorageTRES"),
        (TYPED_CONFIG, TypedLimits.UNKNOWN, "JobSubmitPlugins = lua"),
        (TYPED_CONFIG.replace("= lua", "= (null)"), TypedLimits.NOT_HELD, "JobSubmitPlugins = (null)"),
    ],
)
def test_settings_tell_of_typed_limits_what_they_can(config: str, expected: TypedLimits, setting: str) -> None:
    judged = judge_by_settings(read_settings(config, source="scontrol"))

    assert judged.typed is expected
    assert setting in judged.because


def test_types_that_are_counted_apart_are_known() -> None:
    assert counted_types(read_settings(TYPED_CONFIG, source="scontrol")) == {"h100"}
    assert counted_types(read_settings(UNTYPED_CONFIG, source="scontrol")) == frozenset()


# -- what may be sent --


@pytest.mark.parametrize("name", ["a,b", "a b", "'a'", "+a", "-a", "a=b", "A", "", "a\nb", "a|b", "ä", "a" * 101])
def test_a_name_that_means_something_else_to_sacctmgr_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of account"):
        checked_name(name, what="account")


@pytest.mark.parametrize("gpu_type", ["h100=1", "h100,cpu", "H100", "h 100", "-h100"])
def test_a_type_that_is_none_is_refused(gpu_type: str) -> None:
    with pytest.raises(ValueError, match="no type of GPU"):
        checked_type(GpuType(gpu_type))


def test_many_accounts_are_changed_in_pieces() -> None:
    changes = [QuotaChange(account=TeamName(f"t{n}"), before=None, after=8) for n in range(MOST_NAMES + 1)]

    commands = plan_commands(changes, cluster="c", qos_of={})

    assert [len(command.names) for command in commands] == [MOST_NAMES, 1]
    assert [change for command in commands for change in command.changes] == changes


limit_values = st.one_of(st.none(), st.integers(0, 9))


@given(st.lists(st.tuples(limit_values, limit_values), max_size=8))
def test_every_change_is_in_one_command_and_what_lowers_is_before_what_raises(
    pairs: list[tuple[int | None, int | None]],
) -> None:
    changes = [
        QuotaChange(account=TeamName(f"t{n}"), before=before, after=after) for n, (before, after) in enumerate(pairs)
    ]

    sent = [change for command in plan_commands(changes, cluster="c", qos_of={}) for change in command.changes]

    assert sorted(change.account for change in sent) == sorted(change.account for change in changes)
    lowers = [change.after is not None and (change.before is None or change.after < change.before) for change in sent]
    assert lowers == sorted(lowers, reverse=True)


@pytest.mark.parametrize(("value", "is_taken"), [(-1, False), (0, True), (2**31 - 2, True), (2**31 - 1, False)])
def test_a_limit_is_a_number_that_no_mark_of_slurm_is(value: int, is_taken: bool) -> None:
    try:
        QuotaChange(account=TeamName("a"), before=None, after=value)
    except ValueError:
        assert not is_taken
    else:
        assert is_taken
