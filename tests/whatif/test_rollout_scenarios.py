"""The table of releases and of the cluster: every number with a source, and read as it is."""

import csv
from importlib.resources import files

import pytest

from ops_pipelines_lab.whatif.lifecycle.scenario import (
    LEAST_NODES,
    MOST_NODES,
    TABLE,
    policy_of,
    read_scenarios,
    read_site,
)


def test_every_number_names_its_source_or_calls_itself_an_assumption() -> None:
    text = (files("ops_pipelines.catalogue") / TABLE).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))

    assert rows
    assert all(row["source"] and row["checked_on"] and row["value"] for row in rows)


def test_there_is_one_good_release_and_five_bad_ones() -> None:
    found = read_scenarios()

    assert list(found) == ["good", "hard-failure", "xid-rate", "slow", "late-hang", "one-model"]
    assert [each.name for each in found.values() if each.is_good] == ["good"]
    assert found["one-model"].concerns_second_model
    assert found["late-hang"].hangs_after_seconds == 6 * 3_600


def test_updated_nodes_fail_ten_times_as_often_in_the_scenario_of_rates() -> None:
    site, found = read_site(), read_scenarios()["xid-rate"]

    assert (site.failures_per_node_day + found.extra_failures_per_node_day) == pytest.approx(
        10 * site.failures_per_node_day
    )


def test_the_shares_of_node_hours_add_up_to_all_of_them() -> None:
    assert sum(share for _, share in read_site().job_sizes) == pytest.approx(1.0)


@pytest.mark.parametrize(("nodes", "widest"), [(511, 32), (512, 64), (513, 64), (8, 1), (1, 1)])
def test_a_gang_takes_at_most_an_eighth_of_the_nodes_of_its_model(nodes: int, widest: int) -> None:
    assert max(size for size, _ in read_site().sizes_of(nodes)) == widest


@pytest.mark.parametrize("count", [LEAST_NODES - 1, MOST_NODES + 1, 0, -1])
def test_a_cluster_that_is_too_small_or_too_large_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="expected 40 to 20000"):
        read_site(count)


@pytest.mark.parametrize("count", [LEAST_NODES, LEAST_NODES + 1, MOST_NODES])
def test_the_policy_of_the_bench_grows_with_the_cluster(count: int) -> None:
    policy = policy_of(read_site(count))

    assert policy.rollouts.max_out_count == max(1, round(count * 0.05))
    assert policy.rollouts.max_out_count <= policy.drain_budget.max_out_count
