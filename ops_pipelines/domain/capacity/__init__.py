"""What to buy and by when: peaks ahead against what will be usable, and what each way out costs. Decides; asks nobody.

The way through: `projects` (planned demand) on top of peaks by week -> `shortage` against `supply` -> `order` (by when,
how many), `alternatives`, `regret`, `refresh` -> `plan`. Peaks themselves are `frames.forecast`'s.
"""
