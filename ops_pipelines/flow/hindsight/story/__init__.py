"""The parts of an incident report: what the chain says, what happened when, what it cost, what is left to do."""
