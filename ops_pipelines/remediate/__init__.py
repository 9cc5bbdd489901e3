"""What is done about an incident: decided, proved, guarded, performed, verified; and by hand."""
