"""Lines, samples and panels -> evidence and conditions, taken in once; what nobody sees; the live cycle."""
