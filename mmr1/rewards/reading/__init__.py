"""One reading of answers: text as values of a type, each asserted, negated or hedged."""
