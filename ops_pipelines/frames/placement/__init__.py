"""Rows of the lake -> the values that placement is judged by: machines, stays, absences, waits, past runs, traffic."""
