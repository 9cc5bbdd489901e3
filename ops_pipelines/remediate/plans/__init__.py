"""Plans from the first judgement to their end: put in force, brought forward, waited for, handed over."""
