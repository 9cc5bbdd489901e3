"""A judge in plain Python: what Great Expectations must agree with."""

import re

from ops_pipelines.lake.quality.expectations import Expectation, expectations_of
from ops_pipelines.lake.quality.profile import Profile


def failed_names(profile: Profile) -> set[str]:
    """Return the expectations that the profile fails."""
    values = profile.values()
    failed = set()
    for each in expectations_of(profile.table):
        if each.measure is None:
            is_well = all(text is None or re.fullmatch(each.pattern, text) for text in _texts(profile, each))
        else:
            is_well = _is_within(each, values[each.column, each.measure])
        if not is_well:
            failed.add(each.name)
    return failed


def _texts(profile: Profile, each: Expectation) -> list[str | None]:
    return profile.sample.column(each.column).to_pylist()


def _is_within(each: Expectation, value: float | None) -> bool:
    if value is None:
        return True
    return not (
        (each.at_least is not None and value < each.at_least) or (each.at_most is not None and value > each.at_most)
    )
