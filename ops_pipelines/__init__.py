"""Operations autopilot for GPU clusters: observe, understand, act, verify, report."""
