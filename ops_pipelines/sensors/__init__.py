"""Notices: compares cursors, requests runs, never acts."""
