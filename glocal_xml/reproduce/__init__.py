"""Tables of the papers again: a recipe lists the runs of a table, its data, and the numbers that were published."""
