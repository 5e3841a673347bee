"""Using trained networks: load them, prepare pictures for them, predict, explain, export."""
