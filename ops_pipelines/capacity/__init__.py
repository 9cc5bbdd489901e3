"""What to buy and by when: peaks ahead against what will be usable, and what each way out costs."""
