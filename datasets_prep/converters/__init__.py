"""One dataset a file: its facts, and how one of its rows becomes samples."""
