"""Peaks ahead, what runs short, what to order by when; kept each quarter and compared with what came.

To begin with: `model` (values and quarters), `past` (days put together and read), `forecasting` (forecast and plan of a
quarter), `reporting` (its report, kept), `report` and `answers` (documents and JSON), `forecast.backtest`.
"""

__all__ = [
    "answers",
    "forecast.backtest",
    "forecast.recorded_peaks",
    "forecasting",
    "model",
    "past",
    "report",
    "reporting",
    "tables",
]
