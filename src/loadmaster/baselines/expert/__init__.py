"""What people do by hand."""
