"""Webhook bodies, recorded from Alertmanager 0.25 (tests/data/alertmanager) and hostile: what is believed of whom."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.lake.node_names import NodeNames
from ops_pipelines.observe.alerts import MOST_ALERTS, AlertsRead, NotAWebhook, Sender, read_alerts, read_delivery
from ops_pipelines.resources.catalogue_files import read_catalogue

RECORDED = Path("tests/data/alertmanager")
NOW = datetime(2026, 11, 22, 9, 40, tzinfo=UTC)
NAMES = NodeNames([f"gpu{number:03d}" for number in range(1, 9)])
STARTED = "2026-11-22T09:30:52.720145974Z"


def alert(**changed: object) -> dict[str, object]:
    plain: dict[str, object] = {
        "status": "firing",
        "labels": {"alertname": "NodeRAIDDegraded", "node": "gpu003"},
        "annotations": {"summary": "a disk is gone"},
        "startsAt": STARTED,
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": "9c45c1c7ecde5660",
    }
    return {key: value for key, value in (plain | changed).items() if value is not None}


def body(*alerts: object, **changed: object) -> bytes:
    return json.dumps({"version": "4", "status": "firing", "alerts": list(alerts)} | changed).encode()


def read(text: bytes, sender: Sender | None = None) -> AlertsRead:
    return read_alerts(
        read_delivery(text),
        names=NAMES,
        sender=sender or Sender(),
        rules=read_catalogue().alerts,
        received_at=NOW,
    )


def node_of(**labels: str) -> str | None:
    found = read(body(alert(labels={"alertname": "X"} | labels)))
    return found.firing[0].node if found.firing else None


# -- as Alertmanager sends it --


def test_recorded_alerts_of_two_nodes_fire() -> None:
    found = read((RECORDED / "firing-two-nodes.json").read_bytes())

    assert [(each.node, each.signature) for each in found.firing] == [
        ("gpu003", "NodeRAIDDegraded"),
        ("gpu004", "NodeRAIDDegraded"),
    ]
    first = found.firing[0]
    assert (first.signal, first.source) == (Signal.ALERT, "alerts")
    assert first.text == "alert NodeRAIDDegraded: RAID array md0 is degraded"
    assert first.position == f"9c45c1c7ecde5660/{first.observed_at.isoformat()}"
    assert (found.resolved, found.rejected, found.ignored_count) == ((), (), 0)


def test_recorded_end_of_one_of_two_names_the_same_alert() -> None:
    began = read((RECORDED / "firing-two-nodes.json").read_bytes())

    found = read((RECORDED / "one-of-two-resolved.json").read_bytes())
    both = read((RECORDED / "both-resolved.json").read_bytes())

    assert [each.position for each in found.resolved] == [began.firing[0].position]
    assert [each.position for each in found.firing] == [began.firing[1].position]
    assert [each.position for each in both.resolved] == [each.position for each in began.firing]


def test_recorded_labels_of_dcgm_exporter_name_the_node_and_no_gpu_to_act_on() -> None:
    (told,) = read((RECORDED / "dcgm-exporter.json").read_bytes()).firing

    assert (told.node, told.gpu, told.gpu_uuid, told.component) == ("gpu007", None, None, None)


def test_recorded_alert_without_a_node_is_of_the_cluster() -> None:
    (told,) = read((RECORDED / "no-node.json").read_bytes()).firing

    assert (told.node, told.text) == (NO_NODE, "alert KubeAPIDown")


def test_alerts_that_alertmanager_cut_off_are_told_of() -> None:
    found = read((RECORDED / "truncated.json").read_bytes())

    assert len(found.firing) == 1
    assert "3 more alerts" in found.rejected[0].reason


# -- which node --


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"node": "gpu001"}, "gpu001"),
        ({"node": "gpu001:9100"}, "gpu001"),
        ({"instance": "gpu001:9100"}, "gpu001"),
        ({"instance": "GPU001.site.example:9100"}, "gpu001"),
        ({"hostname": "gpu001"}, "gpu001"),
        ({"Hostname": "gpu001"}, "gpu001"),
        ({"nodename": "gpu001"}, "gpu001"),
        ({"kubernetes_node": "gpu001"}, "gpu001"),
        # kube-state-metrics runs on one node and speaks of all.
        ({"node": "gpu001", "instance": "gpu002:8080"}, "gpu001"),
        ({"instance": "10.0.0.7:8080", "node": "gpu001"}, "gpu001"),
        ({}, NO_NODE),
        ({"node": ""}, NO_NODE),
        ({"node": "gpu009"}, None),
        ({"instance": "storage-1:9100"}, None),
        ({"node": "gpu001", "Hostname": "gpu002"}, "gpu001"),
        ({"Hostname": "gpu001", "nodename": "gpu002"}, None),
        ({"node": "gpu001;reboot"}, None),
        ({"node": ".*"}, None),
    ],
)
def test_node_is_the_one_that_is_spoken_of(labels: dict[str, str], node: str | None) -> None:
    assert node_of(**labels) == node


def test_label_that_cluster_yaml_names_counts_first() -> None:
    text = body(alert(labels={"alertname": "X", "machine": "gpu002:1", "node": "gpu001"}))

    assert read(text, Sender(node_label="machine")).firing[0].node == "gpu002"


@pytest.mark.parametrize(("found", "is_taken"), [("lab", True), ("other", False), (None, False)])
def test_alert_of_another_cluster_is_rejected(found: str | None, is_taken: bool) -> None:
    labels = {"alertname": "X", "node": "gpu001"} | ({} if found is None else {"cluster": found})

    told = read(body(alert(labels=labels)), Sender(labels={"cluster": "lab"}))

    assert bool(told.firing) is is_taken
    assert is_taken or "another cluster" in told.rejected[0].reason


@pytest.mark.parametrize("name", ["Watchdog", "InfoInhibitor", "OpsPipelinesSilent", "OpsPipelinesSourceFailing"])
def test_watchdogs_and_our_own_alerts_are_left_alone(name: str) -> None:
    found = read(body(alert(labels={"alertname": name, "node": "gpu001"})))

    assert (found.firing, found.rejected, found.ignored_count) == ((), (), 1)


# -- what cannot be believed --


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "JSON"),
        (b"[]", "expected a JSON object, found a list"),
        (b"{}", '"version": "4", found \'None\''),
        (b'{"version": "3", "alerts": []}', "found '3'"),
        (b'{"version": "4"}', 'a list under "alerts", found nothing'),
        (b'{"version": "4", "alerts": {}}', "found an object"),
        (b'{"version": "4", "alerts": []', "JSON"),
        (b'{"version": "4", "version": "4", "alerts": []}', "twice"),
        (b'{"version": "4", "alerts": [{"labels": {"node": "gpu001", "node": "gpu002"}}]}', "twice"),
        (b'{"version": "4", "alerts": [NaN]}', "NaN"),
        (b'{"version": "4", "alerts": [Infinity]}', "Infinity"),
        (b'\xff{"version": "4"}', "UTF-8, found byte 0xff at 0"),
        (b'{"version": "4", "receiver": "\xc3("}', "UTF-8"),
        (b'{"version": "4", "alerts": ' + b"[" * 100_000, "levels"),
        (b'{"version": "4", "alerts": [], "x": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001, "levels"),
    ],
)
def test_body_that_is_no_webhook_is_refused_in_words(text: bytes, words: str) -> None:
    with pytest.raises(NotAWebhook, match="expected") as refused:
        read_delivery(text)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"labels": None}, "labels"),
        ({"labels": []}, "labels"),
        ({"labels": {"alertname": 7}}, "labels"),
        ({"labels": {"node": "gpu001"}}, "alertname"),
        ({"labels": {"alertname": ""}}, "alertname"),
        ({"labels": {"alertname": "x" * 129}}, "alertname"),
        ({"annotations": {"summary": {"a": 1}}}, "annotations"),
        ({"status": "suppressed"}, "firing or resolved"),
        ({"status": None}, "firing or resolved"),
        ({"status": ["firing"]}, "firing or resolved"),
        ({"fingerprint": None}, "fingerprint"),
        ({"fingerprint": "../../etc"}, "fingerprint"),
        ({"fingerprint": "a" * 33}, "fingerprint"),
        ({"startsAt": None}, "startsAt"),
        ({"startsAt": "0001-01-01T00:00:00Z"}, "startsAt"),
        ({"startsAt": "2026-11-22T09:30:52"}, "startsAt"),
        ({"startsAt": "9999-12-31T23:59:59-23:59"}, "startsAt"),
        ({"startsAt": 1e308}, "startsAt"),
    ],
)
def test_alert_that_cannot_be_believed_is_kept_with_its_reason_and_costs_no_other(
    changed: dict[str, object], words: str
) -> None:
    found = read(body(alert(**changed), alert(fingerprint="beef"), "text", None, 7))

    assert [each.position.partition("/")[0] for each in found.firing] == ["beef"]
    assert words in found.rejected[0].reason
    assert [each.reason for each in found.rejected[1:]] == [
        f"expected an object, found {what}" for what in ("a text", "nothing", "a value")
    ]


def test_ten_thousand_alerts_are_cut_and_told_of() -> None:
    labels = {"alertname": "X", "node": "gpu001"}
    many = [alert(fingerprint=f"{number:x}", labels=labels) for number in range(10_000)]

    found = read(body(*many))

    assert len(found.firing) == MOST_ALERTS
    assert f"{10_000 - MOST_ALERTS} more alerts" in found.rejected[0].reason


def test_same_alert_twice_in_a_body_counts_once_and_its_end_counts_more() -> None:
    twice = read(body(alert(), alert()))
    ended = read(body(alert(status="resolved"), alert()))

    assert (len(twice.firing), len(twice.resolved)) == (1, 0)
    assert (len(ended.firing), len(ended.resolved)) == (0, 1)


@pytest.mark.parametrize(("minutes", "is_believed"), [(4, True), (5, True), (6, False)])
def test_date_ahead_of_the_clock_gives_way_to_the_time_of_arrival(minutes: int, is_believed: bool) -> None:
    dated = NOW + timedelta(minutes=minutes)

    (told,) = read(body(alert(startsAt=dated.isoformat()))).firing

    assert told.observed_at == (dated if is_believed else NOW)
    assert ("in the future" in told.text) is not is_believed
    assert dated.isoformat() in told.position


def test_text_of_an_alert_is_one_bounded_line() -> None:
    hostile = "a\nb\x1b[2J \ud800 " + "x" * 5_000

    (told,) = read(
        body(alert(annotations={"summary": hostile}, labels={"alertname": "N\x07", "node": "gpu001"}))
    ).firing

    assert told.text.isprintable()
    assert told.text.encode()
    assert len(told.text) <= 400
    assert told.signature == "N\\x07"
