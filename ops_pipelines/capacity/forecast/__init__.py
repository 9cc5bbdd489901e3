"""Past daily maxima -> quantiles of the peak of the next weeks, months and quarters."""
