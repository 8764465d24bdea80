"""What measures runs, engines and steps: audits, comparisons, claims put to the test."""
