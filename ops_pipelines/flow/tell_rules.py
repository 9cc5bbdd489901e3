"""How quiet the autopilot is: what waits for company, for the morning, or for room under the limit of a recipient.

Values and their arithmetic. cluster.yaml sets them under `notifier`; what is told at all is not decided here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo

from ops_pipelines.domain.policy import PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRules:
    """When notes become messages. Pages of a plan are no notes: nothing here delays them."""

    group_window: timedelta = timedelta(seconds=20)
    """How long a note waits for alike ones. Assumption: a fault that hits several nodes shows on all within that."""
    burst_count: int = 6
    """So many messages a recipient gets at once; what is over becomes one digest when there is room again."""
    refill: timedelta = timedelta(minutes=10)
    """After this long there is room for one message more, up to the burst."""
    quiet_from: time | None = time(22, 0)
    """Local time at which the night of the on-call begins; None: there is none. What needs nobody waits until its
    end."""
    quiet_until: time = time(7, 0)
    digest_at: time = time(7, 0)
    """Local time of the daily digest."""
    zone: tzinfo = UTC
    give_up_after: timedelta = timedelta(days=1)
    """A message that no channel took for so long is kept as undeliverable."""
    kept_for: timedelta = timedelta(days=90)
    """How long what was sent stays listed."""

    def __post_init__(self) -> None:
        if self.burst_count < 1:
            raise PolicyError(f"notifier.burst_count is {self.burst_count}; with less than 1 nobody is ever told")
        for name in ("refill", "give_up_after", "kept_for"):
            if getattr(self, name) <= timedelta(0):
                raise PolicyError(f"notifier.{name} must be above 0")
        if self.group_window < timedelta(0):
            raise PolicyError("notifier.group_seconds is negative; it must be 0 or more (0: nothing waits for company)")


def quiet_end(rules: TellRules, now: datetime) -> datetime | None:
    """Return when the night that it is now ends; None by day."""
    if rules.quiet_from is None or rules.quiet_from == rules.quiet_until:
        return None
    clock = now.astimezone(rules.zone).time()
    if rules.quiet_from < rules.quiet_until:
        is_night = rules.quiet_from <= clock < rules.quiet_until
    else:
        is_night = clock >= rules.quiet_from or clock < rules.quiet_until
    return next_time(rules.quiet_until, rules.zone, now) if is_night else None


def next_time(at: time, zone: tzinfo, now: datetime) -> datetime:
    """Return the first instant after `now` at which clocks in `zone` show `at`."""
    today = now.astimezone(zone).date()
    for day in (today, today + timedelta(days=1), today + timedelta(days=2)):
        moment = datetime.combine(day, at, tzinfo=zone).astimezone(UTC)
        if moment > now:
            return moment
    raise AssertionError("some day of three has that time ahead")


def room_for(sent: Sequence[datetime], rules: TellRules, now: datetime) -> int:
    """Return how many messages a recipient may get now: a bucket of `burst_count`, one more each `refill`.

    `sent` are the times of what they got, in any order; what is older than burst x refill no longer counts.
    """
    room = float(rules.burst_count)
    before = now - rules.burst_count * rules.refill
    for moment in sorted(each for each in sent if before < each <= now):
        room = min(float(rules.burst_count), room + (moment - before) / rules.refill) - 1.0
        before = moment
    return max(0, int(min(float(rules.burst_count), room + (now - before) / rules.refill) + 1e-9))
