"""One act: judged on fresh facts, sent once, witnessed. Knows no plan."""
