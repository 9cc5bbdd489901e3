"""Advice to teams, once a week: found, chosen, sent, and two weeks later compared with what they did."""
