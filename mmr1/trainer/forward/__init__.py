"""One packed forward of whole groups: what every score and every update goes through."""
