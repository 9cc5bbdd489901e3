"""The parts of an incident report: what the chain records, what happened when, what it cost, what is left."""
