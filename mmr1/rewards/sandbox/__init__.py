"""The verifier pool: reward code in worker processes that can hurt nobody."""
