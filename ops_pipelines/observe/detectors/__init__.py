"""One module a kind of trouble: each looks at a panel and reports where it saw something, never what to do."""
