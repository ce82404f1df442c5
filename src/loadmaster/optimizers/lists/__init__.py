"""List schedulers and the compiled loop they share."""
