"""The peer of the idle table: bare Dagster, one sensor that does nothing at the fault sensor's interval."""

import dagster as dg


@dg.sensor(minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING, asset_selection="nothing")
def idle_sensor() -> dg.SkipReason:
    """Does nothing."""
    return dg.SkipReason("nothing to do")


@dg.asset
def nothing() -> None:
    """What the sensor would start, if it ever did."""


defs = dg.Definitions(assets=[nothing], sensors=[idle_sensor])
