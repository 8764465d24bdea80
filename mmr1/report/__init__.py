"""What a run did, as something to look at."""
