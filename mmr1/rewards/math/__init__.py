"""Is an answer mathematically the gold answer?"""
