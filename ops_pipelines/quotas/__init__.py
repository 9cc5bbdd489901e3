"""Who may use how many GPUs: guarantee, borrow, lend, demand, and how far quotas move in a day."""
