"""Where the answer of a completion stands, choices and plain text."""
