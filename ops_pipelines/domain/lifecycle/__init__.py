"""How versions move: releases, what may run with what, waves, windows, states, and the gate between waves."""
