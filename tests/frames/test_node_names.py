import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.lake.node_names import NodeNames, mark_nodes
from ops_pipelines.lake.schema import TABLES

CLUSTER = ("gpu001", "gpu002", "login.site.example")


@pytest.mark.parametrize(
    ("name", "settled"),
    [
        ("gpu001", ("gpu001", False)),
        ("gpu001.site.example", ("gpu001", False)),
        ("gpu001:9400", ("gpu001", False)),
        ("gpu001.site.example:9400", ("gpu001", False)),
        ("GPU001", ("gpu001", False)),
        (" gpu001 ", ("gpu001", False)),
        ("login", ("login.site.example", False)),
        ("login.site.example:22", ("login.site.example", False)),
        ("gpu003", ("gpu003", True)),
        ("gpu003:9400", ("gpu003", True)),
        ("gpu001x", ("gpu001x", True)),
        ("login.other.example", ("login.other.example", True)),
        ("10.0.0.7:9400", ("10.0.0.7", True)),
        ("[fe80::1]:9400", ("fe80::1", True)),
        ("fe80::1", ("fe80::1", True)),
        ("", ("", None)),
    ],
)
def test_a_name_is_settled_as_the_node_that_cluster_yaml_knows(name: str, settled: tuple[str, bool | None]) -> None:
    names = NodeNames(CLUSTER)

    found = names.settle(name)

    assert found == settled


def test_a_short_name_that_two_nodes_share_is_neither() -> None:
    names = NodeNames(["a.east", "a.west"])

    assert names.settle("a") == ("a", True)
    assert names.settle("a.west") == ("a.west", False)


def test_without_cluster_yaml_every_name_is_as_good() -> None:
    names = NodeNames(None)

    assert names.settle("gpu001.site.example:9400") == ("gpu001.site.example", None)


def test_a_port_has_at_most_five_digits() -> None:
    names = NodeNames(None)

    assert names.settle("a:12345")[0] == "a"
    assert names.settle("a:123456")[0] == "a:123456"
    assert names.settle("a:")[0] == "a:"


@pytest.mark.parametrize(
    ("labels", "node", "found"),
    [
        ({"Hostname": "gpu001", "instance": "10.0.0.7:9400"}, None, ("gpu001", False)),
        ({"Hostname": "dcgm-exporter-x7k2p", "instance": "gpu002:9400"}, None, ("gpu002", False)),
        ({"hostname": "pod", "kubernetes_node": "gpu001"}, None, ("gpu001", False)),
        ({"instance": "10.0.0.7:9400"}, "gpu001", ("gpu001", False)),
        ({"exported_instance": "gpu001", "instance": "gateway:9091"}, None, ("gpu001", False)),
        ({"Hostname": "gpu009", "instance": "10.0.0.7:9400"}, None, ("gpu009", True)),
        ({"Hostname": "gpu009"}, "gpu001", ("gpu001", False)),
        ({"Hostname": "gpu001"}, "gpu002", ("gpu001", False)),
        ({"instance": "10.0.0.7:9400"}, "gpu009", ("gpu009", True)),
        ({"instance": "10.0.0.7:9400"}, None, ("10.0.0.7", True)),
        ({"host": "gpu001"}, None, ("gpu001", False)),
        ({"Hostname": ""}, None, ("", None)),
        ({}, None, ("", None)),
    ],
)
def test_a_known_name_wins_then_the_label_that_names_the_node(
    labels: dict[str, str], node: str | None, found: tuple[str, bool | None]
) -> None:
    names = NodeNames(CLUSTER)

    assert names.find(labels, node=node) == found


def test_without_cluster_yaml_the_best_label_counts() -> None:
    names = NodeNames(None)

    assert names.find({"Hostname": "a", "instance": "b:1"}) == ("a", None)
    assert names.find({"instance": "b:1"}, node="c") == ("c", None)
    assert names.find({"instance": "b:1"}) == ("b", None)


def test_labels_that_name_two_known_nodes_are_not_believed() -> None:
    names = NodeNames(CLUSTER)

    with pytest.raises(ValueError, match="gpu001 and gpu002"):
        names.find({"Hostname": "gpu001", "instance": "gpu002:9400"})


def test_rows_of_any_table_are_marked() -> None:
    rows = TABLES["job_logs"].from_rows(
        {"source": "s", "position": str(place), "time": 0, "node": node}
        for place, node in enumerate(["gpu001.site.example", None, "", "gpu009", "gpu001"])
    )

    marked = mark_nodes(rows, NodeNames(CLUSTER))

    assert marked.column("node").to_pylist() == ["gpu001", None, "", "gpu009", "gpu001"]
    assert marked.column("unknown_node").to_pylist() == [False, None, None, True, False]
    assert marked.schema == rows.schema


def test_a_table_without_nodes_stays_as_it_is() -> None:
    rows = pa.table({"job": ["1"]})

    assert mark_nodes(rows, NodeNames(CLUSTER)) is rows


def test_an_empty_table_stays_empty() -> None:
    rows = TABLES["inventory"].from_rows([])

    assert mark_nodes(rows, NodeNames(CLUSTER)).num_rows == 0


@given(st.text(max_size=300), st.sets(st.text(max_size=20), max_size=4))
def test_no_text_breaks_the_settling(name: str, known: set[str]) -> None:
    settled, is_unknown = NodeNames(known).settle(name)

    assert settled.isprintable()
    assert len(settled) <= 253
    assert is_unknown in (None, True, False)
    if is_unknown is False:
        assert settled in known


@given(st.text(max_size=40))
def test_settling_twice_changes_nothing_for_a_known_name(name: str) -> None:
    names = NodeNames(CLUSTER)
    settled, is_unknown = names.settle(name)

    if is_unknown is False:
        assert names.settle(settled) == (settled, False)
