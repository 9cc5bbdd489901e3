"""Log sources: the kernel log, job log files, Loki; each remembers how far it was read."""
