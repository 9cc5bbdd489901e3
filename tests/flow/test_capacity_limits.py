"""Which limits further resources are held against: what was metered, what capacity.yaml states of racks and room."""

from collections.abc import Mapping
from datetime import date

import numpy as np
import pytest

from ops_pipelines.capacity.forecast.windows import DailyPeaks
from ops_pipelines.capacity.forecasting import limits_of
from ops_pipelines.capacity.model import SeriesKey
from ops_pipelines.capacity.peak_history import PeakHistory, ResourceHistory
from ops_pipelines.teams.projects import CapacitySettings, RackRoom

RACK = SeriesKey(resource="rack_watts", name="r1")
ROOM = SeriesKey(resource="cooling_watts")


def history(metered: Mapping[SeriesKey, float]) -> PeakHistory:
    def of(key: SeriesKey) -> ResourceHistory:
        return ResourceHistory(
            resource=key.kind,
            keys=(key,),
            series=DailyPeaks(
                names=(key.name,), first_day=date(2026, 10, 1), gpus=np.ones((1, 1)), cap_gpus=np.full(1, np.inf)
            ),
            limits={each: limit for each, limit in metered.items() if each == key},
            near_peak_hours={},
            idle_ratio={},
            means={},
            notes={},
        )

    return PeakHistory(resources=(of(RACK), of(ROOM)), notes=())


@pytest.mark.parametrize(
    ("metered", "stated", "held"),
    [(40_000.0, None, 40_000.0), (40_000.0, 30_000.0, 30_000.0), (None, 30_000.0, 30_000.0), (0.0, None, None)],
    ids=["metered", "stated goes before", "stated alone", "nothing is no limit"],
)
def test_a_rack_is_held_to_what_is_stated_or_else_metered(
    metered: float | None, stated: float | None, held: float | None
) -> None:
    found = limits_of(
        history({} if metered is None else {RACK: metered}),
        CapacitySettings(racks=(RackRoom(rack="r1", free_nodes=1, limit_watts=stated),)),
    )

    assert found.get(RACK) == held


def test_a_rack_of_which_nothing_is_drawn_has_no_series_to_hold() -> None:
    found = limits_of(history({}), CapacitySettings(racks=(RackRoom(rack="r9", free_nodes=1, limit_watts=9.0),)))

    assert found == {}


@pytest.mark.parametrize(("metered", "held"), [(None, 700.0), (650.0, 650.0)])
def test_cooling_without_a_limit_of_its_own_is_held_to_the_power_of_the_room(
    metered: float | None, held: float
) -> None:
    found = limits_of(history({} if metered is None else {ROOM: metered}), CapacitySettings(room_limit_watts=700.0))

    assert found == {ROOM: held}
