"""What is told to whom: notes composed from the ledger, notes gathered into messages, messages handed to channels."""
