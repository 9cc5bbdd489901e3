"""Who is at fault: findings -> incidents, one a cause, each with its hypothesis; lemons, defects, wear."""
