"""What a trained network is for: load it, prepare pictures for it, ask it, look into it, export it."""
