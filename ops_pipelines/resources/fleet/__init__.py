"""Reaches nodes: commands over ssh, BMCs over Redfish."""
