"""Documents: domain values as canonical JSON, and back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, IntEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.fault import AtFault, Family, FirstAction
from ops_pipelines.core.finding import Catalogue, CodeRule
from ops_pipelines.core.identity import JobAttempt, JobId, NodeName, Place, Topology
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import IncidentPlan, Rules
from ops_pipelines.core.policy import Policy
from ops_pipelines.resources.documents import decode, decode_all, encode
from tests.ports.ledger_samples import NOW, drain, incident, outcome, page, plan, record


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Grade(IntEnum):
    LOW = 1
    HIGH = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """One field of each sort that a domain value may have."""

    text: str
    number: int
    ratio: float
    is_so: bool
    colour: Colour
    grade: Grade
    at: datetime
    lasts: timedelta
    node: NodeName
    attempts: frozenset[JobAttempt]
    names: tuple[str, ...]
    pair: tuple[JobId, Grade]
    by_number: Mapping[int, JobAttempt]
    by_colour: Mapping[Grade, float]
    maybe: JobAttempt | None
    later: str = "a field that came later"


TIMES = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]))
ATTEMPTS = st.builds(JobAttempt, job=st.text(), started_at=TIMES)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.builds(
    Everything,
    text=st.text(),
    number=st.integers(min_value=-(2**63), max_value=2**63),
    ratio=FLOATS,
    is_so=st.booleans(),
    colour=st.sampled_from(Colour),
    grade=st.sampled_from(Grade),
    at=TIMES,
    lasts=st.timedeltas(min_value=timedelta(days=-10_000), max_value=timedelta(days=10_000)),
    node=st.text(),
    attempts=st.frozensets(ATTEMPTS, max_size=4),
    names=st.lists(st.text(), max_size=4).map(tuple),
    pair=st.tuples(st.text(), st.sampled_from(Grade)),
    by_number=st.dictionaries(st.integers(), ATTEMPTS, max_size=3),
    by_colour=st.dictionaries(st.sampled_from(Grade), FLOATS),
    maybe=st.none() | ATTEMPTS,
)
SAMPLE = Everything(
    text="größer",
    number=1,
    ratio=0.5,
    is_so=True,
    colour=Colour.BLUE,
    grade=Grade.HIGH,
    at=NOW,
    lasts=timedelta(seconds=90),
    node=NodeName("gpu003"),
    attempts=frozenset(),
    names=(),
    pair=(JobId("42"), Grade.LOW),
    by_number={},
    by_colour={},
    maybe=None,
)


@settings(deadline=None)
@given(ANYTHING)
def test_value_comes_back_equal(value: Everything) -> None:
    assert decode(Everything, encode(value)) == value


@settings(deadline=None)
@given(ANYTHING)
def test_text_is_ascii_sorted_and_the_same_for_the_value_that_comes_back(value: Everything) -> None:
    text = encode(value)

    assert text.isascii()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert encode(decode(Everything, text)) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(replace(SAMPLE, ratio=1.0), replace(SAMPLE, ratio=1), id="whole float and int"),
        pytest.param(replace(SAMPLE, ratio=0.0), replace(SAMPLE, ratio=-0.0), id="two zeros"),
        pytest.param(
            replace(SAMPLE, at=datetime(2026, 3, 1, 12, tzinfo=UTC)),
            replace(SAMPLE, at=datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=1)))),
            id="one instant in two zones",
        ),
        pytest.param(
            replace(SAMPLE, by_colour={Grade.LOW: 0.5, Grade.HIGH: 0.25}),
            replace(SAMPLE, by_colour={Grade.HIGH: 0.25, Grade.LOW: 0.5}),
            id="insertion order",
        ),
        pytest.param(
            replace(SAMPLE, lasts=timedelta(days=1)), replace(SAMPLE, lasts=timedelta(hours=24)), id="days and hours"
        ),
    ],
)
def test_equal_values_have_one_text(one: Everything, other: Everything) -> None:
    assert one == other
    assert encode(one) == encode(other)


def test_sets_of_any_order_have_one_text() -> None:
    attempts = [JobAttempt(job=JobId(str(number)), started_at=NOW) for number in range(50)]

    texts = {encode(frozenset(order)) for order in (attempts, attempts[::-1], attempts[25:] + attempts[:25])}

    assert len(texts) == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(Incident, incident(1), id="incident"),
        pytest.param(IncidentPlan, plan(1, drain(1), page(1)), id="plan"),
        pytest.param(ActionRecord, replace(record(drain(1)), outcome=outcome()), id="action with outcome"),
    ],
)
def test_domain_value_comes_back_equal(kind: type[object], value: object) -> None:
    assert decode(kind, encode(value)) == value


def test_unknown_field_is_refused_however_deep() -> None:
    text = encode(incident(1)).replace('"rule":', '"colour":1,"rule":')

    with pytest.raises(LedgerError, match=r"findings\.0.*colour.*another version"):
        decode(Incident, text)


def test_many_are_decoded_as_each_would_be() -> None:
    values = tuple(replace(SAMPLE, number=number) for number in range(5))

    assert decode_all(Everything, map(encode, values)) == values
    assert decode_all(Everything, []) == ()


def test_one_of_many_that_does_not_fit_is_an_error_that_names_it() -> None:
    texts = [encode(SAMPLE), encode(SAMPLE).replace('"number":1', '"number":"1"')]

    with pytest.raises(LedgerError, match=r"stored Everything does not fit.*1\.number"):
        decode_all(Everything, texts)


def test_two_texts_in_one_row_are_not_taken_for_two_rows() -> None:
    two_in_one = f"{encode(SAMPLE)},{encode(SAMPLE)}"

    with pytest.raises(LedgerError, match="2 instead of 1"):
        decode_all(Everything, [two_in_one])


def test_field_gained_since_takes_its_default() -> None:
    text = encode(SAMPLE).replace('"later":"a field that came later",', "")

    assert decode(Everything, text) == SAMPLE


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{}", id="fields missing"),
        pytest.param("[", id="no JSON"),
        pytest.param(encode(SAMPLE).replace('"number":1', '"number":"1"'), id="a number as text"),
        pytest.param(encode(SAMPLE).replace('"colour":2', '"colour":"green"'), id="no such member"),
        pytest.param(encode(SAMPLE).replace("2026-03-01", "2026-13-01"), id="no such month"),
    ],
)
def test_text_that_is_no_such_value_is_an_error(text: str) -> None:
    with pytest.raises(LedgerError, match="stored Everything does not fit"):
        decode(Everything, text)


def test_value_that_its_own_type_refuses_is_an_error() -> None:
    text = encode(drain(1)).replace('"node":"gpu003"', '"node":null')

    with pytest.raises(LedgerError, match="needs a node"):
        decode(type(drain(1)), text)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(float("nan"), id="not a number"),
        pytest.param(float("inf"), id="infinite"),
        pytest.param(datetime(2026, 3, 1), id="naive time"),
        pytest.param(object(), id="no value"),
        pytest.param(Everything, id="a class"),
        pytest.param({(1, 2): 3}, id="pairs as keys"),
    ],
)
def test_what_json_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(LedgerError):
        encode((value,))


def test_half_of_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert decode(Everything, encode(replace(SAMPLE, text="Xid\ud800!"))).text == "Xid\ufffd!"


def test_rules_come_back_equal_with_their_numbered_catalogue() -> None:
    rule = CodeRule(
        code=79,
        mnemonic="FELL",
        meaning="gone",
        at_fault=AtFault.GPU,
        family=Family.GPU,
        first_action=FirstAction.REBOOT_NODE,
        source="NVIDIA",
    )
    place = Place(rack="r1", nvlink_domain="gpu003", leaf_switch="l1")
    rules = Rules(
        policy=Policy(),
        topology=Topology(places={NodeName("gpu003"): place}, gpus_per_node=8),
        catalogue=Catalogue(xids={79: rule}),
    )

    assert decode(Rules, encode(rules)) == rules
