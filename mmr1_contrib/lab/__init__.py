"""What measures runs, engines and steps against each other."""
