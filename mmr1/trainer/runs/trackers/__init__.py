"""One file per tracker; each imports its library when it is started, and not before."""
