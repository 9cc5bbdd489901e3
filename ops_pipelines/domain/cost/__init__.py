"""What the cluster costs, who pays for it, and that both are the same sum."""
