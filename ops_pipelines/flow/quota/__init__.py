"""Quotas from day to day: demand and supply gathered, quotas proposed, applied and taken back."""
