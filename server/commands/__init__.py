"""The smaller commands of the command line. Their modules import what is heavy only when a command runs."""
