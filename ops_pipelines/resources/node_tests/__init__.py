"""What runs on a node to test it: NVML, DCGM, links and the host, each within its limit."""
