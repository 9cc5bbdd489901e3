"""The start guard: what slurmctld itself runs when an attempt starts, and who answers it on nodes. Needs none of us."""
