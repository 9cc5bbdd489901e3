"""Utilisation in context: who held which GPU, what bounded the job, who held it up."""
