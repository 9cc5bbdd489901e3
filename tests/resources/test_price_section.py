"""The section `prices` and what racks say of what was bought: exact amounts, and a price for everything that is."""

from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.resources.config import site_sections
from ops_pipelines.resources.config.cluster_config import (
    ALWAYS,
    Bought,
    ClusterConfig,
    gpu_types,
    installed_gpus,
    installed_nodes,
)
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.yaml_file import ConfigError, YamlFile
from ops_pipelines.teams.price import AssetPrice, InstalledNode, PricedBy, PriceModel

ROOT = Path(__file__).parents[2]
TOP = """name: test
state_directory: state
policy: policy.yaml
gpus_per_node: 8
scheduler: {kind: simulator}
telemetry: {kind: simulator}
logs: {kind: simulator}
fleet: {kind: simulator}
notifier: {kind: file}
"""
RACKS = "racks:\n  - {name: r1, nodes: a, model: hgx}\n  - {name: r2, nodes: b, model: l40s}\n"
HGX = '{asset: hgx, priced_by: node, capex: "300000.01", amortized_months: 48}'
L40S = '{asset: l40s, priced_by: gpu, capex: "8000", amortized_months: 36}'
PRICES = f"""prices:
  currency: EUR
  assets:
    - {HGX}
    - {L40S}
  per_kwh: "0.12"
  pue: "1.3"
"""
H100 = GpuType("h100")


def cluster_with(directory: Path, text: str) -> ClusterConfig:
    path = directory / "cluster.yaml"
    path.write_text(f"{TOP}{text}", encoding="utf-8")
    return read_cluster(path)


def test_every_amount_is_read_exactly(tmp_path: Path) -> None:
    hgx = HGX[:-1] + ', support_per_month: "2500.5", paid_since: 2025-03}'
    more = '  per_tib_month: "4.999"\n  space_per_month: "60000"\n  support_per_month: "50000.10"\n'
    last = '  network_per_month: "25000"\n  unmeasured_watts_per_gpu: "1275.5"\n'

    config = cluster_with(tmp_path, RACKS + PRICES.replace(HGX, hgx).replace('"0.12"', '"0.1234"') + more + last)

    assert config.prices == PriceModel(
        currency="EUR",
        assets=(
            AssetPrice(
                asset="hgx",
                priced_by=PricedBy.NODE,
                capex_cents=Cents(30_000_001),
                amortized_months=48,
                support_cents_per_month=250_050,
                paid_since=(2025, 3),
            ),
            AssetPrice(asset="l40s", priced_by=PricedBy.GPU, capex_cents=Cents(800_000), amortized_months=36),
        ),
        cents_per_kwh=Fraction("12.34"),
        pue=Fraction("1.3"),
        cents_per_tib_month=Fraction("499.9"),
        space_cents_per_month=6_000_000,
        support_cents_per_month=5_000_010,
        network_cents_per_month=2_500_000,
        unmeasured_watts_per_gpu=Fraction("1275.5"),
    )


def test_what_is_left_out_costs_nothing_but_energy_has_no_default(tmp_path: Path) -> None:
    prices = cluster_with(tmp_path, RACKS + PRICES).prices

    assert prices is not None
    assert (prices.cents_per_tib_month, prices.network_cents_per_month, prices.unmeasured_watts_per_gpu) == (0, 0, None)
    assert prices.assets[0].paid_since is None
    assert cluster_with(tmp_path, RACKS).prices is None


def test_the_shipped_prices_can_be_read_and_are_told_to_be_assumptions() -> None:
    text = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
    prices = read_cluster(ROOT / "cluster.yaml").prices

    assert prices is not None
    assert [each.asset for each in prices.assets] == ["hgx-h100"]
    assert "# Assumption: the amounts below are an example" in text
    for section in (site_sections.PRICES, site_sections.ASSET, site_sections.RACK):
        for key in section.keys:
            assert key in text, key


@given(units=st.integers(0, 10**15 - 1), digits=st.text("0123456789", max_size=9))
def test_an_amount_is_what_was_written_to_the_last_digit(units: int, digits: str) -> None:
    written = f"{units}.{digits}" if digits else str(units)
    asset = {"asset": "a", "priced_by": "node", "capex": "1", "amortized_months": 1}
    file = YamlFile(ROOT / "cluster.yaml")

    section = {"currency": "EUR", "assets": [asset], "per_kwh": written, "pue": "1"}
    prices = file.read(site_sections.PRICES, section, at=("prices",))

    file.finish()
    assert prices is not None
    assert prices.cents_per_kwh == 100 * (units + (Fraction(int(digits), 10 ** len(digits)) if digits else 0))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"0.12"', "0.12", r"line 18: prices.per_kwh: found 0.12; input should be a valid string"),
        ('"0.12"', '"0,12"', r"prices.per_kwh: found '0,12'"),
        ('"0.12"', '"-0.12"', r"prices.per_kwh: found '-0.12'"),
        ('"0.12"', '"1e9"', r"prices.per_kwh: found '1e9'"),
        ('  per_kwh: "0.12"\n', "", r"prices.per_kwh: this key is missing"),
        ('"1.3"', '"0.99"', r"line 19: prices.pue: found '0.99'; expected 1 or more"),
        ("EUR", "eur", r"prices.currency: found 'eur'"),
        ('"300000.01"', '"300000.001"', r"line 16: prices.assets\[0\].capex: found .*expected whole cents"),
        ("amortized_months: 48", "amortized_months: 0", r"assets\[0\].amortized_months: found 0"),
        ("48}", "48, paid_since: 2025-13}", r"assets\[0\].paid_since: found '2025-13'"),
        ("48}", "48, paid_since: 2025-03-01}", r"assets\[0\].paid_since: found"),
        ("priced_by: gpu", "priced_by: rack", r"assets\[1\].priced_by: found 'rack'"),
        ("asset: l40s", "asset: hgx", r"line 17: prices.assets\[1\].asset: hgx has a price above"),
        ("asset: l40s", "asset: l40", r"line 12: racks\[1\].model: no price is stated for l40s.*hgx, l40"),
        (", model: l40s", "", r"line 12: racks\[1\].model: rack r2 has no model.*name one of hgx, l40s"),
        ("  pue:", "  puee:", r"prices.puee: unknown key; did you mean pue\?"),
    ],
)
def test_a_fault_names_line_and_key(tmp_path: Path, old: str, new: str, fault: str) -> None:
    text = RACKS + PRICES
    assert old in text

    with pytest.raises(ConfigError, match=fault):
        cluster_with(tmp_path, text.replace(old, new))


# --- what was bought ----------------------------------------------------------------------------------------------

BOUGHT = (
    "racks:\n"
    '  - {name: r1, nodes: "a[1-2]", model: hgx, gpu_type: h100, installed_since: 2026-03-29}\n'
    "  - {name: r2, nodes: b}\n"
)


def test_racks_say_what_was_bought_and_the_topology_does_not_change(tmp_path: Path) -> None:
    config = cluster_with(tmp_path, BOUGHT)

    new = Bought(gpu_type=H100, installed_since=date(2026, 3, 29))
    assert config.bought == {"a1": new, "a2": new, "b": Bought()}
    assert gpu_types(config) == {"a1": H100, "a2": H100}
    plain = BOUGHT.replace(", gpu_type: h100, installed_since: 2026-03-29", "")
    assert cluster_with(tmp_path, plain).topology == config.topology


def test_a_node_stands_from_the_morning_of_its_day_and_without_one_it_always_did(tmp_path: Path) -> None:
    config = cluster_with(tmp_path, BOUGHT)

    found = installed_nodes(config, zone=ZoneInfo("Europe/Berlin"))

    first = datetime(2026, 3, 28, 23, tzinfo=UTC)
    hgx = InstalledNode(node=NodeName("a1"), asset="hgx", gpu_type=H100, gpu_count=8, since=first, until=None)
    old = InstalledNode(node=NodeName("b"), asset="", gpu_type=GpuType(""), gpu_count=8, since=ALWAYS, until=None)
    assert (found[0], found[2]) == (hgx, old)


@pytest.mark.parametrize(("seconds", "count"), [(-1, 0), (0, 16), (1, 16)])
def test_gpus_are_counted_from_the_moment_on_that_they_stand(tmp_path: Path, seconds: int, count: int) -> None:
    now = datetime(2026, 3, 29, tzinfo=UTC) + timedelta(seconds=seconds)

    assert installed_gpus(cluster_with(tmp_path, BOUGHT), now=now, zone=UTC) == {H100: count, GpuType(""): 8}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("gpu_type: h100", "gpu_type: H100", r"line 11: racks\[0\].gpu_type: found 'H100'; expected lower case"),
        ("gpu_type: h100", "gputype: h100", r"racks\[0\].gputype: unknown key; did you mean gpu_type\?"),
        ("2026-03-29", '"2026-03-29"', r"racks\[0\].installed_since: .*a day without quotes"),
        ("2026-03-29", "2026-03-29T00:00:00Z", r"racks\[0\].installed_since: .*without a time"),
    ],
)
def test_a_fault_of_a_rack_names_its_key(tmp_path: Path, old: str, new: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        cluster_with(tmp_path, BOUGHT.replace(old, new))
