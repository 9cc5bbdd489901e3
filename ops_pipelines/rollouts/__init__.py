"""How versions move: releases, what may run with what, waves, the gate between them, roll back."""
