"""One algorithm per file: a pure advantage and a pure loss, composed."""
