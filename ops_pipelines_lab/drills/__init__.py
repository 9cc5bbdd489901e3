"""Fire drills: `make demo` on the simulated cluster and `make lab` on a real Slurm. An edge, like the command line."""
