"""What every subject speaks: names, findings, incidents, actions, plans, policy; the ledger and the other ports.

All of its modules are its face: values, the errors that are raised over them, and ports with their contracts. Nothing
here reads a file, a clock or a network, and nothing here imports another subject.
"""
