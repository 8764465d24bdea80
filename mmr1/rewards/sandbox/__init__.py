"""The verifier pool: reward code in worker processes that cannot do damage."""
