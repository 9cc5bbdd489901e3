"""What teams wanted: accounting, or a file, -> GPUs that ran and waited by hour, team and type."""
