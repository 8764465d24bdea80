"""One file per tracker. Each imports its library only when it is started."""
