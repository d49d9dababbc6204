"""What people use today, to be compared with."""
