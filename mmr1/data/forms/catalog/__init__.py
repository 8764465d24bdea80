"""One file for each row format."""
