"""Load generation, comparisons with peers, and quality measurements."""
