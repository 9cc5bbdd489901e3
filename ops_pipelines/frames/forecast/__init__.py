"""What teams will want at most: past daily maxima -> quantiles of the peak of the next week, month or quarter.

numpy alone, all series at once, and the same inputs give the same bytes. Files are read in `recorded_peaks`, the one
module here that knows Arrow; how good a forecast would have been is `backtest`. What is bought for it, others decide.
"""
