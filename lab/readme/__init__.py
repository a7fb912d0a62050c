"""The pictures at the top of README: the playground with an answer, and a plot of the speed."""
