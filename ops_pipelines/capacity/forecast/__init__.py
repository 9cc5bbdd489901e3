"""Past daily maxima -> quantiles of the peak of each coming week; numpy alone, all series at once."""
