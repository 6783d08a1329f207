"""What the options of the command are: names, types, defaults, ranges, groups and help."""
