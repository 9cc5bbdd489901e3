"""What evidence means: codes, log lines and conditions -> findings, each with the source of its rule."""
