"""First files from what systems say: readable, without a claim that nobody made; later compared, not rewritten."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.scheduler import AccountQuota
from ops_pipelines.lake.node_names import expand_host_list, fold_host_list
from ops_pipelines.resources.config.cluster_config import ClusterConfig, NodeNameSource
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.drafts import (
    Draft,
    Learned,
    NothingToDraft,
    Pointed,
    draft_files,
    find_differences,
)
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.resources.config.teams_file import read_teams
from ops_pipelines.resources.slurm.survey import SlurmSurvey, SurveyedNode

NOW = datetime(2026, 11, 29, tzinfo=UTC)
HOSTILE = "a: [b]\n# }{ 'x' \"y\" *z &w !!python/object"


def nodes(first: int, last: int, *, gpu_count: int = 8, gpu_type: str = "h100") -> tuple[SurveyedNode, ...]:
    names = [NodeName(f"gpu{number:03d}") for number in range(first, last + 1)]
    return tuple(SurveyedNode(node=name, gpu_count=gpu_count, gpu_type=gpu_type) for name in names)


def account(name: str, parent: str | None = "root", **limits: int) -> AccountQuota:
    return AccountQuota(
        account=TeamName(name),
        parent=None if parent is None else TeamName(parent),
        limits={GpuType("" if key == "any" else key): value for key, value in limits.items()},
        fairshare=1,
    )


SURVEY = SlurmSurvey(
    cluster_name="alps",
    version="22.05.8",
    nodes=(*nodes(1, 16), SurveyedNode(node=NodeName("login1"), gpu_count=0, gpu_type="")),
    leaves={each.node: "leaf1" if number < 8 else "leaf2" for number, each in enumerate(nodes(1, 16))},
    accounts={
        TeamName(each.account): each
        for each in (account("root", None), account("vision"), account("speech", "vision", any=64))
    },
)
POINTED = Pointed(prometheus_url="http://prometheus.example:9090", log_paths=("/var/log/nodes/*.log",))


def read(directory: Path, draft: Draft) -> ClusterConfig:
    for name, text in draft.files.items():
        (directory / name).write_text(text, encoding="utf-8")
    return read_cluster(directory / "cluster.yaml")


def test_draft_says_what_was_found_and_observes(tmp_path: Path) -> None:
    config = read(tmp_path, draft_files(SURVEY, POINTED, Learned(scrape_seconds=30), now=NOW))

    assert (config.name, config.topology.gpus_per_node, len(config.topology.places)) == ("alps", 8, 16)
    assert {place.leaf_switch for place in config.topology.places.values()} == {"leaf1", "leaf2"}
    assert {each.gpu_type for each in config.bought.values()} == {"h100"}
    assert config.telemetry.step.total_seconds() == 30
    policy = read_policy(config.policy_path, topology=config.topology)
    assert policy.mode is Mode.OBSERVE
    assert policy.drain_budget.max_out_count == 4
    assert config.teams_path is not None
    teams = read_teams(config.teams_path)
    assert teams.parents == {"vision": None, "speech": "vision"}
    assert [(each.team, each.terms.guarantee, each.terms.cap) for each in teams.contracts] == [("speech", 0, 64)]


def test_nodes_of_another_size_and_without_gpus_are_left_out_and_named(tmp_path: Path) -> None:
    survey = replace(SURVEY, nodes=(*SURVEY.nodes, *nodes(17, 18, gpu_count=4)))
    draft = draft_files(survey, POINTED, Learned(), now=NOW)

    assert len(read(tmp_path, draft).topology.places) == 16
    assert [each.partition(":")[0] for each in draft.left_out] == [
        "1 node(s) with no GPUs",
        "2 node(s) with 4 GPUs each, and gpus_per_node is 8 for all",
    ]


def test_a_block_is_one_nvlink_domain_and_without_topology_there_is_one_rack_a_type(tmp_path: Path) -> None:
    blocks = replace(SURVEY, leaves={}, blocks=dict.fromkeys((each.node for each in SURVEY.nodes), "b1"))
    config = read(tmp_path, draft_files(blocks, POINTED, Learned(), now=NOW))
    assert {place.nvlink_domain for place in config.topology.places.values()} == {"b1"}

    flat = replace(SURVEY, leaves={}, nodes=(*nodes(1, 4), *nodes(5, 6, gpu_type="a100")))
    config = read(tmp_path, draft_files(flat, POINTED, Learned(), now=NOW))
    assert {place.rack for place in config.topology.places.values()} == {"rack-a100", "rack-h100"}


@pytest.mark.parametrize("survey", [SlurmSurvey(), SlurmSurvey(nodes=nodes(1, 2, gpu_count=0))])
def test_a_slurm_without_gpus_gives_no_files(survey: SlurmSurvey) -> None:
    with pytest.raises(NothingToDraft, match=r"gres\.conf"):
        draft_files(survey, POINTED, Learned(), now=NOW)


def test_words_of_systems_stay_words(tmp_path: Path) -> None:
    survey = replace(
        SURVEY,
        cluster_name=HOSTILE,
        version=HOSTILE,
        nodes=(*nodes(1, 1), *nodes(2, 2, gpu_type=HOSTILE)),
        leaves={NodeName("gpu001"): "leaf", NodeName("gpu002"): HOSTILE},
        accounts={
            TeamName(each.account): each
            for each in (account("root", None), account(HOSTILE), account("yes"), account("1"))
        },
    )
    draft = draft_files(survey, POINTED, Learned(), now=NOW)
    config = read(tmp_path, draft)

    assert config.name == "cluster"
    assert len(config.topology.places) == 2
    assert config.teams_path is not None
    assert set(read_teams(config.teams_path).parents) == {"yes", "1"}
    assert [each.partition(" '")[0] for each in draft.left_out] == ["account", "GPU type", "switch"]


def test_a_slurm_without_accounts_gives_no_file_of_teams(tmp_path: Path) -> None:
    draft = draft_files(replace(SURVEY, accounts={}), POINTED, Learned(scrape_seconds=1_200), now=NOW)

    assert "teams.yaml" not in draft.files
    config = read(tmp_path, draft)
    assert config.teams_path is None
    assert config.telemetry.look_back.total_seconds() == 3_600


def test_every_way_to_be_pointed_gives_files_that_can_be_read(tmp_path: Path) -> None:
    password = tmp_path / "bmc.password"
    password.write_text("secret\n")
    password.chmod(0o600)
    pointed = Pointed(
        exporter_url="http://{node}:9400/metrics",
        journal_directory=tmp_path,
        bmc_address="https://{node}-bmc",
        bmc_user="ops",
        bmc_password_file=password,
    )
    learned = Learned(is_ssh_answering=True, node_name_source=NodeNameSource.FILE_STEM)
    config = read(tmp_path, draft_files(SURVEY, pointed, learned, now=NOW))

    assert len(config.telemetry.targets[0].nodes) == 16
    assert config.logs.journal_directory == tmp_path
    assert config.fleet.redfish is not None
    assert set(config.fleet.commands) == {"inspect", "start_check", "read_check", "reset_gpu", "reboot"}


def test_what_changed_since_is_named_and_what_is_ours_is_not(tmp_path: Path) -> None:
    ours = read(tmp_path, draft_files(SURVEY, POINTED, Learned(), now=NOW))
    assert ours.teams_path is not None
    teams = read_teams(ours.teams_path)
    later = tmp_path / "later"
    later.mkdir()
    survey = replace(
        SURVEY,
        nodes=(*nodes(2, 16), *nodes(17, 17)),
        leaves={**SURVEY.leaves, NodeName("gpu009"): "leaf1"},
    )
    pointed = replace(POINTED, prometheus_url="http://other.example:9090")
    found = read(later, draft_files(survey, pointed, Learned(scrape_seconds=60), now=NOW))

    changes = list(find_differences(ours, found, teams=teams, accounts=["vision", "speech", "robots"]))

    assert len(changes) == 5
    new, gone, moved, url, missing = changes
    assert "gpu017" in new
    assert "gpu001" in gone
    assert "gpu009" in moved
    assert "http://other.example:9090" in url
    assert "robots" in missing
    assert not list(find_differences(ours, ours, teams=teams, accounts=["vision"]))


@given(st.sets(st.tuples(st.sampled_from(["gpu", "a1-n", "x"]), st.integers(0, 1200)), max_size=40), st.integers(1, 4))
def test_folded_host_lists_name_the_same_nodes(numbered: set[tuple[str, int]], width: int) -> None:
    names = {NodeName(f"{name}{number:0{width}}") for name, number in numbered} | {NodeName("login")}
    folded = fold_host_list(names)
    assert set(expand_host_list(folded)) == names


def test_no_node_folds_to_nothing() -> None:
    assert fold_host_list([]) == ""
